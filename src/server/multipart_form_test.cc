// Forms as clients send them, and what is no form.
#include "server/multipart_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace coppice::server {
namespace {

using ::testing::HasSubstr;

TEST(MultipartForm, FieldsAndFiles) {
  const std::string body =
      "preamble\r\n--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
      "--x  \r\ncontent-type: application/jsonl\r\ncontent-disposition: form-data; filename=\"a \\\"b\\\"; c.jsonl\"; "
      "name=file\r\n\r\n{\"a\": 1}\r\n--xy\r\n\r\n--x--\r\nepilogue";
  const Result<std::vector<FormField>> fields = ParseForm(body, "x");
  ASSERT_FALSE(fields.ok());  // --xy is a boundary with text behind it
  EXPECT_THAT(fields.status().message(), HasSubstr("followed by text"));
  std::string fixed = body;
  fixed.replace(fixed.find("--xy"), 4, "-- x");
  const Result<std::vector<FormField>> right = ParseForm(fixed, "x");
  ASSERT_TRUE(right.ok()) << right.status().message();
  ASSERT_EQ(right->size(), 2);
  EXPECT_EQ((*right)[0].name, "purpose");
  EXPECT_EQ((*right)[0].value, "batch");
  EXPECT_FALSE((*right)[0].filename);
  EXPECT_EQ((*right)[1].name, "file");
  EXPECT_EQ((*right)[1].filename, "a \"b\"; c.jsonl");
  EXPECT_EQ((*right)[1].value, "{\"a\": 1}\r\n-- x\r\n");
}

TEST(MultipartForm, EmptyFormsAndValues) {
  EXPECT_TRUE(ParseForm("--x--", "x")->empty());
  const auto fields = ParseForm("--x\r\nContent-Disposition: form-data; name=\"\"\r\n\r\n\r\n--x--\r\n", "x");
  ASSERT_TRUE(fields.ok()) << fields.status().message();
  EXPECT_EQ((*fields)[0].name, "");
  EXPECT_EQ((*fields)[0].value, "");
}

TEST(MultipartForm, WhatIsNoForm) {
  const std::string head = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n";
  for (const std::string& body :
       {std::string(), std::string("--y--"), std::string("--x"), std::string("--x\r\n"), std::string("--x\r\n--x--"),
        std::string("--x\r\n\r\n--x--"), std::string("--x\r\nContent-Disposition: form-data\r\n\r\nv\r\n--x--"), head + "v",
        head + "v\r\n" + head + "w\r\n--x--", head + "v\r\n--x", "--x\r\n" + std::string(10'000, 'a') + "\r\n\r\n\r\n--x--"}) {
    EXPECT_FALSE(ParseForm(body, "x").ok()) << body.substr(0, 200);
  }
  std::string many;
  for (int i = 0; i < 17; ++i) many += "--x\r\nContent-Disposition: form-data; name=\"" + std::to_string(i) + "\"\r\n\r\nv\r\n";
  EXPECT_THAT(ParseForm(many + "--x--", "x").status().message(), HasSubstr("more than 16"));
}

TEST(MultipartForm, ContentTypes) {
  EXPECT_TRUE(IsForm("Multipart/Form-Data ; boundary=x"));
  EXPECT_FALSE(IsForm("multipart/mixed; boundary=x"));
  EXPECT_EQ(*BoundaryOf("multipart/form-data; charset=utf-8; Boundary=\"a;b\""), "a;b");
  for (const char* type : {"multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=\"a\nb\""})
    EXPECT_FALSE(BoundaryOf(type).ok()) << type;
  EXPECT_FALSE(BoundaryOf("multipart/form-data; boundary=" + std::string(71, 'a')).ok());
}

TEST(MultipartForm, AnythingEndsWithoutReadingBeyondIt) {
  const std::vector<std::string> pieces = {
      "--x", "\r\n", "--", "x", "Content-Disposition: form-data; name=\"a\"", ";", "\"", "\\", "v", " ", "filename=\""};
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string body;
    for (size_t i = random() % 16; i > 0; --i) body += pieces[random() % pieces.size()];
    const std::string exact(body.begin(), body.end());  // sanitizers see a read behind it
    const Result<std::vector<FormField>> fields = ParseForm(exact, "x");
    if (!fields.ok()) continue;
    for (const FormField& field : *fields) EXPECT_THAT(exact, HasSubstr(std::string(field.value)));
  }
}

}  // namespace
}  // namespace coppice::server
