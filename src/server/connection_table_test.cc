#include "server/connection_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace coppice::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ConnectionTableTest : public ::testing::Test {
 protected:
  // Of a connection that waits for its client.
  std::unique_ptr<ConnectionTable::Place> Enter(const std::string& peer, const std::string& name = "", bool is_proxy = false) {
    std::unique_ptr<ConnectionTable::Place> place = table_.Enter(peer, is_proxy);
    if (!place) return place;
    place->CloseBy([this, name] { closed_.push_back(name); });
    place->WaitsForClient();
    return place;
  }

  std::vector<std::string> closed_;
  ConnectionTable table_{4};
};

TEST_F(ConnectionTableTest, PlacesAreGivenBack) {
  for (int i = 0; i < 10; ++i) {
    const auto a = Enter("a"), b = Enter("a"), c = Enter("b"), d = Enter("c");
    EXPECT_TRUE(a && b && c && d);
    EXPECT_EQ(table_.size(), 4);
  }
  EXPECT_EQ(table_.size(), 0);
  EXPECT_THAT(closed_, IsEmpty());
}

TEST_F(ConnectionTableTest, ThePeerWithTheMostGivesUpWhatWaitsLongest) {
  const auto first = Enter("flood", "1"), second = Enter("flood", "2"), third = Enter("flood", "3"), other = Enter("b", "b");
  first->WaitsForClient();  // something came on it
  EXPECT_TRUE(Enter("c"));
  EXPECT_THAT(closed_, ElementsAre("2"));
  const auto more = Enter("flood", "4");
  EXPECT_EQ(table_.size(), 4);
  const auto again = Enter("flood", "5");  // of its own
  EXPECT_TRUE(again);
  EXPECT_THAT(closed_, ElementsAre("2", "3"));
}

TEST_F(ConnectionTableTest, WhatTheServerWorksForStays) {
  std::vector<std::unique_ptr<ConnectionTable::Place>> flood;
  for (int i = 0; i < 4; ++i) {
    flood.push_back(Enter("flood", std::to_string(i)));
    flood.back()->WorksForClient();
  }
  EXPECT_FALSE(Enter("a"));
  flood[2]->WaitsForClient();
  EXPECT_TRUE(Enter("a"));
  EXPECT_THAT(closed_, ElementsAre("2"));
  flood[2]->WorksForClient();  // it has lost its place
  flood[2].reset();
  EXPECT_EQ(table_.size(), 3);
}

TEST_F(ConnectionTableTest, APeerTakesNothingFromThoseWithLess) {
  const auto busy_1 = Enter("busy"), busy_2 = Enter("busy"), a = Enter("a", "a"), b = Enter("b", "b");
  busy_1->WorksForClient();
  busy_2->WorksForClient();
  EXPECT_FALSE(Enter("busy"));
  EXPECT_TRUE(Enter("a"));
  EXPECT_THAT(closed_, ElementsAre("a"));  // its own
}

TEST_F(ConnectionTableTest, ConnectionsOfAProxyStay) {
  const auto proxy_1 = Enter("proxy", "", /*is_proxy=*/true), proxy_2 = Enter("proxy", "", /*is_proxy=*/true);
  const auto proxy_3 = Enter("proxy", "", /*is_proxy=*/true), a = Enter("a", "a");
  EXPECT_TRUE(Enter("b"));
  EXPECT_THAT(closed_, ElementsAre("a"));
  const auto c = Enter("c", "c");
  const auto proxy_4 = Enter("proxy", "", /*is_proxy=*/true);  // it is many clients
  EXPECT_TRUE(proxy_4);
  EXPECT_THAT(closed_, ElementsAre("a", "c"));
  EXPECT_FALSE(Enter("d"));
}

}  // namespace
}  // namespace coppice::server
