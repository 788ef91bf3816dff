// Answers on their way from handlers to the connection.
#include "server/session_responder.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>

namespace coppice::server {
namespace {

class SessionResponderTest : public ::testing::Test {
 protected:
  std::shared_ptr<SessionResponder> Make() {
    return std::make_shared<SessionResponder>([this](bool cut) { (cut ? cuts_ : notified_) += 1; }, /*max_behind=*/10, all_);
  }

  const std::shared_ptr<UnwrittenAnswers> all_ = std::make_shared<UnwrittenAnswers>(/*max_bytes=*/1000);
  std::shared_ptr<SessionResponder> responder_ = Make();
  int notified_ = 0, cuts_ = 0;
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

// A text of one piece that says how much it holds.
class FakeText final : public TextSource {
 public:
  explicit FakeText(size_t held) : held_(held) {}
  bool Next(std::string* out) override {
    *out += "text";
    return false;
  }
  size_t held_bytes() const override { return held_; }

 private:
  const size_t held_;
};

TEST_F(SessionResponderTest, ASourceStandsBetweenTexts) {
  responder_->BeginStream();
  responder_->Write("a");
  responder_->Write(std::make_unique<FakeText>(50));
  responder_->Write("b");
  responder_->EndStream();
  const SessionResponder::Part first = responder_->Take();
  EXPECT_TRUE(first.begin_stream);
  EXPECT_EQ(first.text, "a");
  EXPECT_TRUE(first.source);
  EXPECT_FALSE(first.end);
  EXPECT_EQ(all_->bytes(), 1 + 50 + 1);
  responder_->Hold(70);
  EXPECT_EQ(all_->bytes(), 70 + 1);
  const SessionResponder::Part second = responder_->Take();
  EXPECT_EQ(second.text, "b");
  EXPECT_TRUE(second.end);
  EXPECT_EQ(all_->bytes(), 1);
  responder_->Close(/*gone=*/false);
  EXPECT_EQ(all_->bytes(), 0);
}

TEST_F(SessionResponderTest, AClientThatFallsBehindIsGivenUp) {
  responder_->BeginStream();
  responder_->Write("0123");
  EXPECT_EQ(responder_->Take().text, "0123");  // on its way to the client, which is behind by that too
  responder_->Write("456789");
  EXPECT_EQ(cuts_, 0);
  responder_->Write("x");
  EXPECT_EQ(cuts_, 1);
  EXPECT_EQ(all_->bytes(), 0);
  responder_->Write("y");  // nothing is kept any more
  EXPECT_EQ(cuts_, 1);
  const SessionResponder::Part part = responder_->Take();
  EXPECT_TRUE(part.cut);
  EXPECT_TRUE(part.text.empty());
  EXPECT_TRUE(responder_->was_cut());
}

TEST_F(SessionResponderTest, AnswersThatHoldTooMuchTogetherGiveWay) {
  const std::shared_ptr<SessionResponder> other = Make(), small = Make(), large = Make();
  responder_->SetOwner("bob");
  other->SetOwner("bob");
  small->SetOwner("alice");
  large->SetOwner("alice");
  responder_->Send({.body = std::string(450, 'x')});  // the largest of all, but its owner does not hold most
  small->Send({.body = std::string(200, 'x')});
  large->Send({.source = std::make_shared<FakeText>(300)});
  EXPECT_EQ(cuts_, 0);
  other->Send({.body = std::string(51, 'x')});  // bob holds 501 of 1,001 bytes
  EXPECT_EQ(cuts_, 1);
  EXPECT_TRUE(responder_->Take().cut);
  EXPECT_EQ(all_->bytes(), 551);
  EXPECT_TRUE(large->Take().whole);
  large->Hold(800);  // what it holds while it is written counts too
  EXPECT_TRUE(large->was_cut());
  EXPECT_FALSE(small->was_cut() || other->was_cut());
}

TEST_F(SessionResponderTest, LeavingIsReported) {
  int gone = 0;
  responder_->WhenGone([&] { ++gone; });
  responder_->Close(/*gone=*/true);
  EXPECT_EQ(gone, 1);
  responder_->Write("late");
  responder_->Send({});
  EXPECT_EQ(notified_, 0);  // after Close there may be no coroutine to notify
  EXPECT_TRUE(responder_->Take().empty());
  responder_->WhenGone([&] { ++gone; });  // called at once
  EXPECT_EQ(gone, 2);
}

TEST_F(SessionResponderTest, AClientWithTheAnswerHasNotLeft) {
  int gone = 0;
  responder_->WhenGone([&] { ++gone; });
  responder_->Close(/*gone=*/false);
  responder_->WhenGone([&] { ++gone; });
  EXPECT_EQ(gone, 0);
}

TEST_F(SessionResponderTest, WhatCannotBeNotifiedIsFoundLater) {
  SessionResponder responder([](bool) { throw std::bad_alloc(); }, /*max_behind=*/10, all_);
  responder.Send({.status = 503});
  EXPECT_EQ(responder.Take().whole.value().status, 503);
  responder.Cut();
  EXPECT_TRUE(responder.Take().cut);
}

TEST_F(SessionResponderTest, AForgottenRequestIsAnswered) {
  WithFallback(responder_).reset();
  EXPECT_EQ(responder_->Take().whole.value().status, 500);
  const std::shared_ptr<SessionResponder> answered = Make();
  {
    const std::shared_ptr<Responder> handle = WithFallback(answered);
    handle->Send({.status = 404});
  }
  EXPECT_EQ(answered->Take().whole.value().status, 404);
}

}  // namespace
}  // namespace coppice::server
