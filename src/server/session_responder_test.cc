// Answers on their way from handlers to the connection.
#include "server/session_responder.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>

namespace coppice::server {
namespace {

class SessionResponderTest : public ::testing::Test {
 protected:
  std::shared_ptr<SessionResponder> responder_ = std::make_shared<SessionResponder>([this] { ++notified_; }, /*max_unwritten=*/10);
  int notified_ = 0;
};

TEST_F(SessionResponderTest, OneAnswer) {
  EXPECT_TRUE(responder_->Take().empty());
  responder_->Send({.status = 400});
  responder_->Send({.status = 200});
  const SessionResponder::Part part = responder_->Take();
  EXPECT_EQ(part.whole.value().status, 400);
  EXPECT_TRUE(part.end);
  EXPECT_TRUE(responder_->Take().empty());
}

TEST_F(SessionResponderTest, TextsOfAStreamAreJoined) {
  responder_->BeginStream();
  responder_->Write("abc");
  responder_->Write("de");
  SessionResponder::Part part = responder_->Take();
  EXPECT_TRUE(part.begin_stream);
  EXPECT_EQ(part.text, "abcde");
  EXPECT_FALSE(part.end);
  responder_->EndStream();
  EXPECT_TRUE(responder_->Take().end);
  EXPECT_EQ(notified_, 4);
}

TEST_F(SessionResponderTest, AClientThatFallsBehindIsGivenUp) {
  responder_->BeginStream();
  responder_->Write("0123456789");
  EXPECT_FALSE(responder_->Take().cut);
  responder_->Write("0123456789");
  responder_->Write("x");
  responder_->Write("y");  // nothing is kept any more
  const SessionResponder::Part part = responder_->Take();
  EXPECT_TRUE(part.cut);
  EXPECT_TRUE(part.text.empty());
}

TEST_F(SessionResponderTest, WhoLeavesIsTold) {
  int gone = 0;
  responder_->WhenGone([&] { ++gone; });
  responder_->Close(/*gone=*/true);
  EXPECT_EQ(gone, 1);
  responder_->Write("late");
  responder_->Send({});
  EXPECT_EQ(notified_, 0);  // after Close there may be nobody to notify
  EXPECT_TRUE(responder_->Take().empty());
  responder_->WhenGone([&] { ++gone; });  // told at once
  EXPECT_EQ(gone, 2);
}

TEST_F(SessionResponderTest, WhoHasTheAnswerHasNotLeft) {
  int gone = 0;
  responder_->WhenGone([&] { ++gone; });
  responder_->Close(/*gone=*/false);
  responder_->WhenGone([&] { ++gone; });
  EXPECT_EQ(gone, 0);
}

TEST_F(SessionResponderTest, WhatCannotBeNotifiedIsFoundLater) {
  SessionResponder responder([] { throw std::bad_alloc(); }, /*max_unwritten=*/10);
  responder.Send({.status = 503});
  EXPECT_EQ(responder.Take().whole.value().status, 503);
  responder.Cut();
  EXPECT_TRUE(responder.Take().cut);
}

TEST_F(SessionResponderTest, AForgottenRequestIsAnswered) {
  WithFallback(responder_).reset();
  EXPECT_EQ(responder_->Take().whole.value().status, 500);
  const auto answered = std::make_shared<SessionResponder>([] {}, 10);
  {
    const std::shared_ptr<Responder> handle = WithFallback(answered);
    handle->Send({.status = 404});
  }
  EXPECT_EQ(answered->Take().whole.value().status, 404);
}

}  // namespace
}  // namespace coppice::server
