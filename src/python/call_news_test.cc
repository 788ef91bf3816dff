// CallNews alone, its events added by hand between Wait and Take as an engine's thread may add them. Layer: python, tests.
#include "python/call_news.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <vector>

namespace coppice::python {
namespace {

using std::chrono::milliseconds;

StreamEvent Token(int32_t sample, int32_t token) {
  StreamEvent event;
  event.index = sample;
  event.token_ids = {token};
  event.logprobs = {-1.0F};
  return event;
}

StreamEvent Last(int32_t sample, int32_t token, bool request_done) {
  StreamEvent event = Token(sample, token);
  event.finish_reason = FinishReason::kLength;
  event.request_done = request_done;
  return event;
}

std::vector<int32_t> Samples(const CallNews::Pieces& pieces) {
  std::vector<int32_t> samples;
  for (const auto& [place, piece] : pieces) samples.push_back(place.second);
  return samples;
}

bool Readable(int descriptor) {
  pollfd asked{.fd = descriptor, .events = POLLIN, .revents = 0};
  return poll(&asked, 1, 0) == 1;
}

TEST(CallNewsTest, PiecesComeOnceAStep) {
  CallNews news(CallNews::Delivery::kPieces, 1, false);
  EXPECT_TRUE(news.Add(0, Token(0, 5)));
  EXPECT_FALSE(news.Add(0, Token(1, 6))) << "the step is to be announced already";
  EXPECT_FALSE(news.Wait(milliseconds(0)));
  EXPECT_TRUE(news.Take().empty());
  news.Announce();
  EXPECT_TRUE(news.Wait(milliseconds(0)));
  EXPECT_EQ(Samples(news.Take()), (std::vector{0, 1}));
  EXPECT_FALSE(news.Wait(milliseconds(0)));
  EXPECT_FALSE(news.finished());
}

TEST(CallNewsTest, NewsStayWhileTheLastStepComes) {
  CallNews news(CallNews::Delivery::kPieces, 1, false);
  news.Add(0, Token(0, 5));
  news.Announce();
  ASSERT_TRUE(news.Wait(milliseconds(0)));
  news.Add(0, Last(0, 6, false));
  news.Add(0, Last(1, 7, true));  // the request has ended, and its step is not announced yet
  EXPECT_FALSE(news.finished());
  const CallNews::Pieces pieces = news.Take();
  ASSERT_EQ(Samples(pieces), (std::vector{0, 1}));
  EXPECT_EQ(pieces.at({0, 0}).sample.token_ids, (std::vector{5, 6}));
  EXPECT_TRUE(news.finished());
}

TEST(CallNewsTest, ALastStepInTwoParts) {
  CallNews news(CallNews::Delivery::kPieces, 1, false);
  news.Add(0, Token(0, 5));
  news.Announce();
  news.Add(0, Last(0, 6, false));
  EXPECT_EQ(Samples(news.Take()), std::vector{0});
  news.Add(0, Last(1, 7, true));
  EXPECT_FALSE(news.Wait(milliseconds(0)));
  EXPECT_FALSE(news.finished());
  news.Announce();
  EXPECT_TRUE(news.Wait(milliseconds(0)));
  EXPECT_EQ(Samples(news.Take()), std::vector{1});
  EXPECT_TRUE(news.finished());
}

TEST(CallNewsTest, AStepTakenBeforeItsEndAnnouncesNoOther) {
  CallNews news(CallNews::Delivery::kPieces, 1, false);
  news.Add(0, Token(0, 5));
  news.Announce();
  news.Add(0, Token(0, 6));
  EXPECT_EQ(news.Take().at({0, 0}).sample.token_ids, (std::vector{5, 6}));
  news.Announce();
  EXPECT_FALSE(news.Wait(milliseconds(0)));
  EXPECT_TRUE(news.Add(0, Token(0, 7)));
  EXPECT_FALSE(news.Wait(milliseconds(0))) << "before its step is whole";
  news.Announce();
  EXPECT_TRUE(news.Wait(milliseconds(0)));
}

TEST(CallNewsTest, TheWholeComesAtTheEnd) {
  CallNews news(CallNews::Delivery::kWhole, 2, false);
  EXPECT_FALSE(news.Add(0, Token(0, 5)));
  EXPECT_FALSE(news.Add(0, Last(0, 6, true)));
  EXPECT_FALSE(news.Wait(milliseconds(0)));
  EXPECT_TRUE(news.Add(1, Last(0, 7, true)));
  EXPECT_FALSE(news.Wait(milliseconds(0)));
  news.Announce();
  ASSERT_TRUE(news.Wait(milliseconds(0)));
  const CallNews::Pieces pieces = news.Take();
  EXPECT_EQ(pieces.at({0, 0}).sample.token_ids, (std::vector{5, 6}));
  EXPECT_EQ(pieces.at({1, 0}).sample.token_ids, std::vector{7});
  EXPECT_TRUE(news.finished());
}

TEST(CallNewsTest, AnEndWithoutPiecesIsNews) {
  CallNews news(CallNews::Delivery::kPieces, 1, false);
  StreamEvent end;
  end.request_done = true;
  EXPECT_TRUE(news.Add(0, end));
  EXPECT_FALSE(news.Wait(milliseconds(0)));
  news.Announce();
  EXPECT_TRUE(news.Wait(milliseconds(0)));
  EXPECT_TRUE(news.Take().empty());
  EXPECT_TRUE(news.finished());
}

TEST(CallNewsTest, TheDescriptorIsReadableWhileThereAreNews) {
  CallNews news(CallNews::Delivery::kPieces, 1, false);
  news.Add(0, Token(0, 5));
  news.Announce();
  const int descriptor = news.Descriptor().value();
  EXPECT_TRUE(Readable(descriptor)) << "of news that came before it";
  (void)news.Take();
  EXPECT_FALSE(Readable(descriptor));
  news.Add(0, Token(0, 6));
  EXPECT_FALSE(Readable(descriptor));
  news.Announce();
  EXPECT_TRUE(Readable(descriptor));
  news.Add(0, Last(0, 7, true));
  (void)news.Take();
  EXPECT_TRUE(Readable(descriptor)) << "after the end a loop comes back for it";
  EXPECT_EQ(news.Descriptor().value(), descriptor);
}

TEST(CallNewsTest, KeptSamplesThatEnded) {
  CallNews news(CallNews::Delivery::kPieces, 1, true);
  news.Add(0, Last(1, 5, false));
  EXPECT_TRUE(news.HasEnded({0, 1}));
  EXPECT_FALSE(news.HasEnded({0, 0}));
}

}  // namespace
}  // namespace coppice::python
