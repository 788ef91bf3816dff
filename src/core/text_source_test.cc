// Text that is made piece by piece: whatever its parts are, the pieces are bounded and make the whole.
#include "core/text_source.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace coppice {
namespace {

// Each group of parts is added when the one before it is taken.
class Groups final : public PartedText {
 public:
  using Group = std::function<void(TextParts*)>;
  explicit Groups(std::vector<Group> groups) : groups_(std::move(groups)) {}
  size_t held_bytes() const override { return 7; }

 private:
  bool AddParts(TextParts* parts) override {
    if (next_ == groups_.size()) return false;
    groups_[next_++](parts);
    return true;
  }

  const std::vector<Group> groups_;
  size_t next_ = 0;
};

void Digits(size_t i, std::string* out) { *out += std::to_string(i % 10); }

TEST(TextSource, PartsInTheirOrder) {
  std::string copy;
  Groups source({[](TextParts* parts) {
                   parts->Add("a");
                   parts->AddView("bc");
                 },
                 [](TextParts*) {},  // nothing, but there is more
                 [&](TextParts* parts) {
                   parts->AddEach(3, Digits, &copy);
                   parts->AddEach(0, Digits);
                   parts->Add("");
                   parts->AddView("");
                 },
                 [](TextParts* parts) { parts->Add("d"); }});
  EXPECT_EQ(TextOf(&source), "abc012d");
  EXPECT_EQ(copy, "012");
}

TEST(TextSource, PiecesAreBounded) {
  const size_t many = 3 * kTextPiece + 5;
  const std::string view(many, 'v');
  std::string copy;
  Groups source({[&](TextParts* parts) { parts->AddView(view); }, [&](TextParts* parts) { parts->AddEach(many, Digits, &copy); },
                 [&](TextParts* parts) { parts->AddView(copy); }});  // complete when it is repeated
  std::string whole;
  size_t pieces = 0;
  for (bool more = true; more; ++pieces) {
    std::string piece;
    more = source.Next(&piece);
    EXPECT_LE(piece.size(), kTextPiece);
    whole += piece;
  }
  EXPECT_EQ(pieces, 3 * many / kTextPiece + 1);
  EXPECT_EQ(whole.substr(0, many), view);
  EXPECT_EQ(whole.substr(many, many), copy);
  EXPECT_EQ(whole.substr(2 * many), copy);
  EXPECT_EQ(copy.substr(0, 12), "012345678901");
}

TEST(TextSource, EnclosedBetweenTexts) {
  EnclosedText text("<", std::make_unique<Groups>(std::vector<Groups::Group>{[](TextParts* parts) { parts->AddEach(2, Digits); }}),
                    ">\n");
  EXPECT_EQ(text.held_bytes(), 1 + 7 + 2);
  EXPECT_EQ(TextOf(&text), "<01>\n");
}

}  // namespace
}  // namespace coppice
