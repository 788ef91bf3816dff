#include "tokenizer/fim.h"

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>
#include <utility>

#include "core/check.h"

namespace coppice {
namespace {

// The texts of a family's tokens; empty: it has none.
struct Family {
  std::string_view prefix, suffix, middle;
  std::string_view repository = {}, file = {};  // before the name of a repository, of a file
  std::array<std::string_view, 4> ends = {};    // what an answer ends with, beside the end of text
  bool suffix_first = false;                    // suffix, then prefix, and no middle
};

constexpr Family kFamilies[] = {
    // Qwen2.5-Coder and later (arXiv 2409.12186, section 3.1); CodeGemma, with a separator of its own
    {.prefix = "<|fim_prefix|>",
     .suffix = "<|fim_suffix|>",
     .middle = "<|fim_middle|>",
     .repository = "<|repo_name|>",
     .file = "<|file_sep|>",
     .ends = {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"}},
    // StarCoder, StarCoder2 (arXiv 2402.19173, section 5.1), Granite code
    {.prefix = "<fim_prefix>",
     .suffix = "<fim_suffix>",
     .middle = "<fim_middle>",
     .repository = "<repo_name>",
     .file = "<file_sep>",
     .ends = {"<fim_pad>", "<repo_name>", "<file_sep>", "<reponame>"}},
    // SantaCoder
    {.prefix = "<fim-prefix>", .suffix = "<fim-suffix>", .middle = "<fim-middle>", .ends = {"<fim-pad>"}},
    // DeepSeek-Coder: the gap is the "hole", which stands before the suffix
    {.prefix = "<｜fim▁begin｜>", .suffix = "<｜fim▁hole｜>", .middle = "<｜fim▁end｜>"},
    // CodeLlama (arXiv 2308.12950, section 2.3), with SentencePiece's mark of a space and without
    {.prefix = "▁<PRE>", .suffix = "▁<SUF>", .middle = "▁<MID>", .ends = {"▁<EOT>"}},
    {.prefix = "<PRE>", .suffix = "<SUF>", .middle = "<MID>", .ends = {"<EOT>"}},
    // Codestral: mistral-common's encode_fim
    {.prefix = "[PREFIX]", .suffix = "[SUFFIX]", .middle = "[MIDDLE]", .suffix_first = true},
    // GLM 4.5 and Falcon H1
    {.prefix = "<|code_prefix|>", .suffix = "<|code_suffix|>", .middle = "<|code_middle|>"},
    {.prefix = "<|prefix|>", .suffix = "<|suffix|>", .middle = "<|middle|>"},
};

// Ids of the texts above.
class KnownTexts {
 public:
  explicit KnownTexts(const std::vector<std::string>& tokens) {
    for (const Family& family : kFamilies) {
      for (const std::string_view text : {family.prefix, family.suffix, family.middle, family.repository, family.file})
        ids_.emplace(text, -1);
      for (const std::string_view text : family.ends) ids_.emplace(text, -1);
    }
    ids_.erase(std::string_view());
    for (size_t id = 0; id < tokens.size(); ++id) {
      const auto known = ids_.find(tokens[id]);
      if (known != ids_.end() && known->second < 0) known->second = static_cast<int32_t>(id);
    }
  }
  int32_t IdOf(std::string_view text) const {
    const auto known = ids_.find(text);
    return known == ids_.end() ? -1 : known->second;
  }

 private:
  std::unordered_map<std::string_view, int32_t> ids_;
};

// The family of the tokens that the file names, else of those that the vocabulary has; null: of none that is known.
const Family* FamilyOf(const TokenizerData& data, const KnownTexts& texts) {
  const auto has = [&texts](std::string_view text) { return texts.IdOf(text) >= 0; };
  const auto is_it = [&](const Family& family) {
    if (data.fim.usable()) return data.tokens[static_cast<size_t>(data.fim.prefix)] == family.prefix;
    return has(family.prefix) && has(family.suffix) && has(family.middle);
  };
  const auto found = std::ranges::find_if(kFamilies, is_it);
  return found == std::end(kFamilies) ? nullptr : found;
}

// Appends the tokens of a text that a client gave, in which control tokens are text.
Status AppendText(const Tokenizer& tokenizer, std::string_view text, std::vector<int32_t>* ids) {
  const ByteRange all = {0, text.size()};
  COPPICE_ASSIGN_OR_RETURN(
      const std::vector<int32_t> encoded,
      tokenizer.Encode(text, {.add_special = false, .parse_special = true, .values = std::span(&all, text.empty() ? 0 : 1)}));
  ids->insert(ids->end(), encoded.begin(), encoded.end());
  return OkStatus();
}

// Likewise of a text that goes on in the middle of a file: tokenizers that put a space before each text put none before this one.
// Another text stands before it while it is tokenised, one that merges with nothing (as in CodeLlama's encode_infilling).
Status AppendMidText(const Tokenizer& tokenizer, std::string_view text, std::vector<int32_t>* ids) {
  constexpr std::string_view kBefore = "\u263A";
  if (tokenizer.info().strip_start == 0 || text.empty()) return AppendText(tokenizer, text, ids);
  std::vector<int32_t> before, both;
  COPPICE_RETURN_IF_ERROR(AppendText(tokenizer, kBefore, &before));
  COPPICE_RETURN_IF_ERROR(AppendText(tokenizer, std::string(kBefore).append(text), &both));
  const auto [left, rest] = std::ranges::mismatch(before, both);
  if (left != before.end()) return AppendText(tokenizer, text, ids);  // a vocabulary that merges even that one
  ids->insert(ids->end(), rest, both.end());
  return OkStatus();
}

// As the models with such tokens were trained: repository, then each file behind its name, the one with the gap last. Names that
// are not known are those of llama.cpp. Other models see the files as snippets of one text.
Status AppendFiles(const Tokenizer& tokenizer, const std::vector<FimFile>& files, std::vector<int32_t>* ids) {
  constexpr std::string_view kRepository = "myproject\n", kFile = "filename\n", kSnippet = "\n\n--- snippet ---\n\n";
  const FimTokens& fim = tokenizer.info().fim;
  if (files.empty()) return OkStatus();
  if (fim.file < 0) {
    std::string snippets;
    for (const FimFile& file : files) snippets.append(kSnippet).append(file.text);
    return AppendText(tokenizer, snippets, ids);
  }
  if (fim.repository >= 0) {
    ids->push_back(fim.repository);
    COPPICE_RETURN_IF_ERROR(AppendMidText(tokenizer, kRepository, ids));
  }
  for (const FimFile& file : files) {
    ids->push_back(fim.file);
    COPPICE_RETURN_IF_ERROR(AppendMidText(tokenizer, file.name + "\n" + file.text, ids));
  }
  ids->push_back(fim.file);
  return AppendMidText(tokenizer, kFile, ids);
}

}  // namespace

FimTokens FindFimTokens(const TokenizerData& data) {
  const KnownTexts texts(data.tokens);
  const Family* family = FamilyOf(data, texts);
  FimTokens found = data.fim;
  if (!found.usable()) {  // some of the three say nothing
    if (!family) return {};
    found.prefix = texts.IdOf(family->prefix);
    found.suffix = texts.IdOf(family->suffix);
    found.middle = texts.IdOf(family->middle);
  }
  std::vector<int32_t> ends;
  if (family) {
    if (found.repository < 0) found.repository = texts.IdOf(family->repository);
    if (found.file < 0) found.file = texts.IdOf(family->file);
    found.suffix_first = family->suffix_first;
    for (const std::string_view text : family->ends) ends.push_back(texts.IdOf(text));
  }
  ends.insert(ends.end(), {found.repository, found.file});
  for (const int32_t id : ends) {
    if (id >= 0 && std::ranges::find(found.ends, id) == found.ends.end()) found.ends.push_back(id);
  }
  return found;
}

size_t FimContext::bytes() const {
  size_t bytes = suffix.size();
  for (const FimFile& file : files) bytes += file.name.size() + file.text.size();
  return bytes;
}

Status CheckFim(const Tokenizer& tokenizer) {
  if (tokenizer.info().fim.usable()) return OkStatus();
  return InvalidArgument(
      "the model's vocabulary has no fill-in-the-middle tokens; take a model that was trained to fill in the "
      "middle, such as Qwen2.5-Coder or StarCoder2");
}

Result<std::vector<int32_t>> EncodeFim(const Tokenizer& tokenizer, std::string_view prefix, const FimContext& context) {
  COPPICE_RETURN_IF_ERROR(CheckFim(tokenizer));
  const Tokenizer::Info& info = tokenizer.info();
  const FimTokens& fim = info.fim;
  std::vector<int32_t> ids;
  if (info.add_bos) ids.push_back(info.bos_id);
  COPPICE_RETURN_IF_ERROR(AppendFiles(tokenizer, context.files, &ids));
  if (!fim.suffix_first) {
    ids.push_back(fim.prefix);
    COPPICE_RETURN_IF_ERROR(AppendText(tokenizer, prefix, &ids));
  }
  ids.push_back(fim.suffix);
  COPPICE_RETURN_IF_ERROR(AppendMidText(tokenizer, context.suffix, &ids));
  ids.push_back(fim.suffix_first ? fim.prefix : fim.middle);
  if (fim.suffix_first) COPPICE_RETURN_IF_ERROR(AppendText(tokenizer, prefix, &ids));
  return ids;
}

}  // namespace coppice
