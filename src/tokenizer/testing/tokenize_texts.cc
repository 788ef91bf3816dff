// tokenize_texts TOKENIZER TEXTS REPETITIONS: encodes texts and decodes them again, for comparison with other tokenizers
// (bench/peers/tokenizers_pypi.py). Not installed. Layer: tokenizer.
//
// TOKENIZER is a tokenizer.json or a tokenizer.model. TEXTS holds texts, each with its length before it (4 bytes, little endian).
// Standard output gets for each text the count and the ids (4 bytes each), then length and bytes of their text; standard error the
// seconds that encoding all of them took, the least of so many repetitions.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tokenizer.h"

namespace coppice {
namespace {

std::string ReadAll(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Write(const void* bytes, size_t size) { std::fwrite(bytes, 1, size, stdout); }
void WriteSize(size_t size) {
  const auto small = static_cast<uint32_t>(size);
  Write(&small, sizeof small);
}

int Fail(const Status& status) {
  std::fprintf(stderr, "tokenize_texts: %s\n", status.ToString().c_str());
  return EXIT_FAILURE;
}

int Run(const std::string& path, const char* texts_path, int repetitions) {
  const std::string file = ReadAll(path.c_str());
  const bool is_model = path.ends_with(".model");  // SentencePiece never takes control tokens from the text
  Result<TokenizerData> data = is_model ? ParseSentencePieceModel(file) : ParseHuggingFaceTokenizer(file, {});
  if (!data.ok()) return Fail(data.status());
  const auto tokenizer = CreateTokenizer(*std::move(data));
  if (!tokenizer.ok()) return Fail(tokenizer.status());

  const std::string all = ReadAll(texts_path);
  std::vector<std::string_view> texts;
  for (size_t at = 0; at + sizeof(uint32_t) <= all.size();) {
    uint32_t size = 0;
    std::memcpy(&size, all.data() + at, sizeof size);
    texts.push_back(std::string_view(all).substr(at + sizeof size, size));
    at += sizeof size + size;
  }

  double seconds = 1e9;
  std::vector<std::vector<int32_t>> ids(texts.size());
  for (int i = 0; i < repetitions; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (size_t text = 0; text < texts.size(); ++text) {
      auto encoded = (*tokenizer)->Encode(texts[text], {.add_special = false, .parse_special = !is_model});
      if (!encoded.ok()) return Fail(encoded.status());
      ids[text] = *std::move(encoded);
    }
    seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  for (const std::vector<int32_t>& encoded : ids) {
    WriteSize(encoded.size());
    Write(encoded.data(), encoded.size() * sizeof(int32_t));
    const std::string text = (*tokenizer)->Decode(encoded);
    WriteSize(text.size());
    Write(text.data(), text.size());
  }
  std::fprintf(stderr, "%.6f\n", seconds);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: tokenize_texts TOKENIZER TEXTS REPETITIONS\n");
    return EXIT_FAILURE;
  }
  return coppice::Run(argv[1], argv[2], std::atoi(argv[3]));
}
