// Which routes there are, and which one a request's head asks for: else 404, 405 or 415 says what it does not. Knows no keys, no
// bodies and no sockets.
// Layer: server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http.h"

namespace coppice::server {

struct Call;

// In the place of a route's path, where there is none.
inline constexpr std::string_view kNoRoute = "none";

// The bodies of a route's requests.
enum class BodyKind : uint8_t {
  kNone,  // nothing that is read: no Content-Type is asked for
  kJson,
  kForm,          // multipart/form-data
  kOptionalJson,  // kJson, or nothing
};

struct Route {
  std::string_view method;
  std::string_view path;  // may have one {variable}, which stands for any text that is not empty
  std::function<void(const std::shared_ptr<Call>&)> handle;
  BodyKind body = BodyKind::kNone;
  bool open = false;     // needs no key
  bool trainer = false;  // where there are keys, needs one of role trainer
};

// Thread-safe.
class Router {
 public:
  explicit Router(std::vector<Route> routes) : routes_(std::move(routes)) {}

  struct Found {
    std::string_view path = kNoRoute;  // of the routes that match the request's path, whatever its method: the one that says most
    const Route* route = nullptr;      // lives as long as the router
    std::string variable;              // what stands for the path's {variable}; empty: it has none
    std::optional<HttpResponse> refusal;  // 404 or 405, where there is no route
  };
  // A slash at the path's end says nothing.
  Found Find(const HttpRequest& head) const;

 private:
  const std::vector<Route> routes_;
};

// 415 where the Content-Type is not that of the route's bodies, or they come in an encoding that is not decoded. Only JSON and
// forms are taken: a page of another site can make a browser send other types without asking.
std::optional<HttpResponse> RefuseBodyType(const Route& route, const HttpRequest& head);

}  // namespace coppice::server
