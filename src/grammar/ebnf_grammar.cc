#include "grammar/ebnf_grammar.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

// XGrammar's \x takes as many digits as there are; \u and \U are of fixed length.
void AppendEscaped(char32_t c, std::string* out) {
  const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  if (plain) {
    *out += static_cast<char>(c);
  } else if (c <= 0xFFFF) {
    *out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  } else {
    *out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
  }
}

std::string TextLiteral(std::string_view text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text.substr(i));
    const bool printable = c.code_point >= ' ' && c.code_point != '"' && c.code_point != '\\' && c.code_point != 0x7F;
    if (printable) {
      out += text.substr(i, c.length);
    } else {
      AppendEscaped(c.code_point, &out);
    }
    i += c.length;
  }
  return out + "\"";
}

std::string ClassLiteral(const CharSet& characters) {
  std::string out = "[";
  for (const CharRange& range : characters.ranges()) {
    AppendEscaped(range.first, &out);
    if (range.last == range.first) continue;
    out += '-';
    AppendEscaped(range.last, &out);
  }
  return out + "]";
}

std::string RuleName(EbnfGrammar::RuleId id) { return fmt::format("r{}", id); }

std::string SymbolText(const EbnfGrammar::Symbol& symbol) {
  using Kind = EbnfGrammar::Symbol::Kind;
  std::string out = symbol.kind == Kind::kText         ? TextLiteral(symbol.text)
                    : symbol.kind == Kind::kCharacters ? ClassLiteral(symbol.characters)
                                                       : RuleName(symbol.rule);
  if (symbol.least == 1 && symbol.most == 1) return out;
  if (symbol.most) return out + fmt::format("{{{},{}}}", symbol.least, *symbol.most);
  return out + (symbol.least == 0 ? "*" : fmt::format("{{{},}}", symbol.least));
}

}  // namespace

bool EbnfGrammar::too_large() const {
  size_t symbols = rules_.size();
  for (const Rule& rule : rules_) {
    for (const Sequence& sequence : rule.alternatives) symbols += sequence.size() + 1;
  }
  return symbols > kMaxSymbols;
}

bool EbnfGrammar::IsThere(const Symbol& symbol) const {
  if (symbol.kind == Symbol::Kind::kCharacters) return !symbol.characters.empty();
  return symbol.kind == Symbol::Kind::kText || productive_[symbol.rule];
}

bool EbnfGrammar::IsProductive(const Symbol& symbol) const {
  if (symbol.most && *symbol.most < symbol.least) return false;
  return symbol.least == 0 || IsThere(symbol);
}

bool EbnfGrammar::Prune(RuleId root) {
  // A rule is looked at again when one that it leads to has turned out to be productive.
  productive_.assign(rules_.size(), false);
  std::vector<std::vector<RuleId>> users(rules_.size());
  std::vector<RuleId> work;
  for (RuleId id = 0; id < std::ssize(rules_); ++id) {
    work.push_back(id);
    for (const Sequence& sequence : rules_[id].alternatives) {
      for (const Symbol& symbol : sequence) {
        if (symbol.kind == Symbol::Kind::kRule) users[symbol.rule].push_back(id);
      }
    }
  }
  const auto completes = [&](const Sequence& sequence) {
    return std::ranges::all_of(sequence, [&](const Symbol& symbol) { return IsProductive(symbol); });
  };
  while (!work.empty()) {
    const RuleId id = work.back();
    work.pop_back();
    if (productive_[id] || std::ranges::none_of(rules_[id].alternatives, completes)) continue;
    productive_[id] = true;
    work.insert(work.end(), users[id].begin(), users[id].end());
  }
  for (Rule& rule : rules_) {
    std::erase_if(rule.alternatives, [&](const Sequence& sequence) { return !completes(sequence); });
    for (Sequence& sequence : rule.alternatives) {
      std::erase_if(sequence, [&](const Symbol& symbol) { return symbol.most == 0 || !IsThere(symbol); });
    }
  }
  return productive_[root];
}

std::string EbnfGrammar::Text(RuleId root) const {
  COPPICE_CHECK(productive_.size() == rules_.size() && productive_[root]);
  std::string out = fmt::format("root ::= {}\n", RuleName(root));
  std::vector<bool> seen(rules_.size());
  std::vector<RuleId> work = {root};
  seen[root] = true;
  for (size_t i = 0; i < work.size(); ++i) {
    const Rule& rule = rules_[work[i]];
    out += RuleName(work[i]);
    if (rule.max_characters) out += fmt::format("[max_chars={}]", *rule.max_characters);
    out += " ::=";
    for (size_t k = 0; k < rule.alternatives.size(); ++k) {
      if (k > 0) out += " |";
      if (rule.alternatives[k].empty()) out += " \"\"";
      for (const Symbol& symbol : rule.alternatives[k]) {
        (out += ' ') += SymbolText(symbol);
        if (symbol.kind != Symbol::Kind::kRule || seen[symbol.rule]) continue;
        seen[symbol.rule] = true;
        work.push_back(symbol.rule);
      }
    }
    if (!rule.followed_by.empty()) out += fmt::format(" (={})", rule.followed_by);
    out += '\n';
  }
  return out;
}

}  // namespace coppice
