#include "server/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace coppice::server {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

Router Routes() {
  return Router({{"GET", "/", {}},
                 {"GET", "/things", {}},
                 {"POST", "/things", {}, BodyKind::kJson},
                 {"GET", "/things/{id}", {}},
                 {"POST", "/things/{id}/cancel", {}},
                 {"GET", "/things/all", {}},
                 {"POST", "/files", {}, BodyKind::kForm}});
}

TEST(Router, FindsTheRouteThatSaysMost) {
  const Router router = Routes();
  const auto path = [&](const std::string& method, const std::string& path) {
    const Router::Found found = router.Find({.method = method, .path = path});
    return found.route ? std::string(found.route->path) + " " + found.variable : "none";
  };
  EXPECT_EQ(path("GET", "/"), "/ ");
  EXPECT_EQ(path("POST", "/things"), "/things ");
  EXPECT_EQ(path("GET", "/things/a"), "/things/{id} a");
  EXPECT_EQ(path("GET", "/things/a/b"), "/things/{id} a/b");
  EXPECT_EQ(path("GET", "/things/a%2Fb+c%"), "/things/{id} a/b+c%");
  EXPECT_EQ(path("POST", "/things/a/cancel"), "/things/{id}/cancel a");
  EXPECT_EQ(path("POST", "/things//cancel"), "none");  // a thing of the name "/cancel" takes no POST
  EXPECT_EQ(path("GET", "/thing"), "none");
  EXPECT_EQ(path("GET", ""), "none");
}

TEST(Router, ASlashAtTheEndSaysNothing) {
  const Router router({{"GET", "/", nullptr}, {"POST", "/v1/a", nullptr}, {"GET", "/v1/a/{name}", nullptr}});
  const auto found = [&](const std::string& path) { return router.Find({.method = "POST", .path = path}).path; };
  EXPECT_EQ(found("/v1/a/"), "/v1/a");
  EXPECT_EQ(router.Find({.method = "GET", .path = "/v1/a/b/"}).variable, "b");
  EXPECT_EQ(found("/"), "/");
  EXPECT_EQ(found("//"), "none");
}

TEST(Router, SaysWhatThereIsInstead) {
  const Router router = Routes();
  const Router::Found nothing = router.Find({.method = "GET", .path = "/no\nthing"});
  EXPECT_EQ(nothing.route, nullptr);
  EXPECT_EQ(nothing.path, "none");
  ASSERT_TRUE(nothing.refusal);
  EXPECT_EQ(nothing.refusal->status, 404);
  EXPECT_THAT(nothing.refusal->body, HasSubstr(R"(/no\\x0athing)"));
  const Router::Found other = router.Find({.method = "PUT", .path = "/things"});
  EXPECT_EQ(other.path, "/things");
  ASSERT_TRUE(other.refusal);
  EXPECT_EQ(other.refusal->status, 405);
  EXPECT_THAT(other.refusal->headers, Contains(Pair("allow", "GET, POST")));
  EXPECT_EQ(router.Find({.method = "POST", .path = "/things/a"}).refusal->status, 405);
  const Router::Found below = router.Find({.method = "POST", .path = "/things/a/cancels"});  // "a/cancels" is hardly a name
  EXPECT_EQ(below.path, "none");
  ASSERT_TRUE(below.refusal);
  EXPECT_EQ(below.refusal->status, 404);
  EXPECT_THAT(below.refusal->body, HasSubstr("/things/a/cancels"));
}

TEST(Router, TypesOfBodies) {
  const Router router = Routes();
  const auto status = [&](const std::string& path, const std::string& type) {
    const HttpRequest head = {.method = "POST", .path = path, .content_type = type};
    const std::optional<HttpResponse> refused = RefuseBodyType(*router.Find(head).route, head);
    return refused ? refused->status : 200;
  };
  for (const char* type : {"application/json", "Application/JSON; charset=utf-8", "application/json ;x"})
    EXPECT_EQ(status("/things", type), 200) << type;
  for (const char* type : {"", "text/plain", "application/jsonp", "multipart/form-data; boundary=a"})
    EXPECT_EQ(status("/things", type), 415) << type;
  EXPECT_EQ(status("/files", "multipart/form-data; boundary=a"), 200);
  EXPECT_EQ(status("/files", "application/json"), 415);
  EXPECT_EQ(status("/things/a/cancel", "text/plain"), 200);
}

TEST(Router, EncodingsOfBodies) {
  const Router router = Routes();
  const auto status = [&](const std::string& path, const std::string& type, const std::string& encoding) {
    const HttpRequest head = {.method = "POST", .path = path, .content_type = type, .content_encoding = encoding};
    const std::optional<HttpResponse> refused = RefuseBodyType(*router.Find(head).route, head);
    return refused ? refused->status : 200;
  };
  for (const char* encoding : {"", "identity", "gzip", "x-gzip"}) EXPECT_EQ(status("/things", "application/json", encoding), 200);
  for (const char* encoding : {"br", "deflate", "gzip, gzip", "zstd"})
    EXPECT_EQ(status("/things", "application/json", encoding), 415);
  EXPECT_EQ(status("/files", "multipart/form-data; boundary=a", "gzip"), 415);
}

}  // namespace
}  // namespace coppice::server
