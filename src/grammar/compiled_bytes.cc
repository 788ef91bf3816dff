#include "grammar/compiled_bytes.h"

#include <compiled_grammar_impl.h>
#include <grammar_impl.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace coppice {
namespace {

using xgrammar::AdaptiveTokenMask;
using xgrammar::CompactFSMWithStartEnd;
using xgrammar::CompactFSMWithStartEndWithSize;
using xgrammar::CompiledGrammar;
using xgrammar::DynamicBitset;
using xgrammar::Grammar;
using xgrammar::ParserState;

class Writer {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void Put(const T& value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  template <class T>
  void Put(const std::vector<T>& values) {
    Put(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void Put(const std::string& text) {
    Put(text.size());
    bytes_ += text;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  requires std::is_trivially_copyable_v<T>
  void Get(T* value) { std::memcpy(value, TakeBytes(sizeof *value).data(), sizeof *value); }
  template <class T>
  void Get(std::vector<T>* values) {
    const std::string_view data = TakeSized(sizeof(T));
    values->resize(data.size() / sizeof(T));
    if (!data.empty()) std::memcpy(values->data(), data.data(), data.size());
  }
  void Get(std::string* text) { *text = TakeSized(1); }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view TakeBytes(size_t size) {
    if (size > bytes_.size()) throw std::runtime_error("the bytes of a compiled grammar are cut");
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  std::string_view TakeSized(size_t element) {
    size_t count = 0;
    Get(&count);
    if (count > bytes_.size() / element) throw std::runtime_error("the bytes of a compiled grammar are cut");
    return TakeBytes(count * element);
  }

  std::string_view bytes_;
};

// The automata of all rules are one, which the grammar's JSON has once where it has none for each rule.
void PutGrammar(const Grammar& grammar, Writer* out) {
  auto bare = std::make_shared<Grammar::Impl>(*grammar.ImplPtr());
  bare->per_rule_fsms.clear();
  bare->optimized = false;  // which is checked against them
  out->Put(Grammar(std::move(bare)).SerializeJSON());
  for (const auto& rule : grammar.ImplPtr()->per_rule_fsms) {
    const CompactFSMWithStartEnd& fsm = rule.value().GetFsm();
    out->Put(fsm.GetStart());
    out->Put(fsm.GetEnds());
    out->Put(rule->GetEdgeNum());
    out->Put(rule->GetNodeNum());
  }
}

Grammar GetGrammar(Reader* in) {
  std::string text;
  in->Get(&text);
  auto read = Grammar::DeserializeJSON(text);
  if (!std::holds_alternative<Grammar>(read)) throw std::runtime_error("the bytes of a compiled grammar hold none");
  Grammar grammar = std::get<Grammar>(std::move(read));
  for (int32_t rule = 0; rule < grammar->NumRules(); ++rule) {
    int start = 0, edges = 0, nodes = 0;
    std::vector<int32_t> ends;
    in->Get(&start);
    in->Get(&ends);
    in->Get(&edges);
    in->Get(&nodes);
    grammar->per_rule_fsms.emplace_back(
        CompactFSMWithStartEndWithSize(CompactFSMWithStartEnd(grammar->complete_fsm, start, std::move(ends)), edges, nodes));
  }
  grammar->optimized = true;
  return grammar;
}

void PutMask(const AdaptiveTokenMask& mask, Writer* out) {
  out->Put(mask.store_type);
  out->Put(mask.accepted_indices);
  out->Put(mask.rejected_indices);
  out->Put(mask.uncertain_indices);
  std::vector<uint32_t> words(DynamicBitset::GetBufferSize(mask.accepted_bitset.Size()));
  DynamicBitset copy(mask.accepted_bitset.Size(), words.data());
  if (!words.empty()) copy = mask.accepted_bitset;
  out->Put(mask.accepted_bitset.Size());
  out->Put(words);
}

AdaptiveTokenMask GetMask(Reader* in) {
  AdaptiveTokenMask mask;
  in->Get(&mask.store_type);
  in->Get(&mask.accepted_indices);
  in->Get(&mask.rejected_indices);
  in->Get(&mask.uncertain_indices);
  int size = 0;
  std::vector<uint32_t> words;
  in->Get(&size);
  in->Get(&words);
  if (size > 0) {
    const DynamicBitset view(size, words.data());
    mask.accepted_bitset = view;  // a copy
  }
  return mask;
}

}  // namespace

std::string ToBytes(const CompiledGrammar& compiled) {
  Writer out;
  PutGrammar(compiled.ImplPtr()->grammar, &out);
  out.Put(compiled.ImplPtr()->adaptive_token_mask_cache.size());
  for (const auto& [state, mask] : compiled.ImplPtr()->adaptive_token_mask_cache) {
    out.Put(state);
    PutMask(mask, &out);
  }
  return out.Take();
}

CompiledGrammar CompiledFromBytes(std::string_view bytes, const xgrammar::TokenizerInfo& tokens) {
  Reader in(bytes);
  auto compiled = std::make_shared<CompiledGrammar::Impl>();
  compiled->grammar = GetGrammar(&in);
  compiled->tokenizer_info = tokens;
  size_t count = 0;
  in.Get(&count);
  for (size_t i = 0; i < count; ++i) {
    ParserState state;
    in.Get(&state);
    compiled->adaptive_token_mask_cache.emplace(state, GetMask(&in));
  }
  if (!in.at_end()) throw std::runtime_error("the bytes of a compiled grammar go on behind it");
  return CompiledGrammar(std::move(compiled));
}

}  // namespace coppice
