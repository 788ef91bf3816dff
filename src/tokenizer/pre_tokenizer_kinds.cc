// The names that GGUF files give to ways of splitting text, and the patterns they mean. The patterns are those of the models' own
// tokenizer.json where there is one. Layer: tokenizer.
#include <algorithm>
#include <iterator>

#include "core/quoted.h"
#include "tokenizer/pre_tokenizer.h"

namespace coppice {
namespace {

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define NOT_HAN R"((?!\p{Han}))"
#define SPACES R"(\s*[\r\n]+|\s+(?!\S)|\s+)"

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kOneDigit[] = R"(\p{N})";
constexpr char kThreeDigits[] = R"(\p{N}{1,3})";
constexpr char kThousands[] = R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))";  // groups of three from the right
constexpr char kWordsThreeDigits[] = CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPACES;
constexpr char kWordsOneDigit[] = CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPACES;
constexpr char kWordsWithMarks[] = CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" SPACES;
constexpr char kNoContractions[] = R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPACES;
constexpr char kTekken[] = R"([^\r\n\p{L}\p{N}]?)" UPPER "*" LOWER R"(+|[^\r\n\p{L}\p{N}]?)" UPPER "+" LOWER
                           R"(*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SPACES;
// Words end where lower case is followed by upper case, contractions stay with them.
#define CASED_WORDS \
  R"([^\r\n\p{L}\p{N}]?)" UPPER "*" LOWER "+" CONTRACTIONS R"(?|[^\r\n\p{L}\p{N}]?)" UPPER "+" LOWER "*" CONTRACTIONS "?|"
constexpr char kGpt4o[] = CASED_WORDS R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SPACES;
constexpr char kYoutu[] = CASED_WORDS R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SPACES;
constexpr char kKimi[] = R"(\p{Han}+|[^\r\n\p{L}\p{N}]?(?:)" NOT_HAN UPPER ")*(?:" NOT_HAN LOWER ")+" CONTRACTIONS
                         R"(?|[^\r\n\p{L}\p{N}]?(?:)" NOT_HAN UPPER ")+(?:" NOT_HAN LOWER ")*" CONTRACTIONS
                         R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPACES;
constexpr char kBailing[] =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr char kSeedCoder[] = CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|)" SPACES;
constexpr char kJais2[] = CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s)";
constexpr char kExaoneMoe[] =
    CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr char kLines[] = R"([^\n]+|\n+)";
constexpr char kBloom[] = R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)";
constexpr char kChineseAndKana[] = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr char kDeepSeek3Words[] =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)" SPACES;
constexpr char kLineEnd[] = R"([\r\n])";
constexpr char kDeepSeekAsian[] = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
// Letters that have two cases, as of the Unicode version of the tokenizer's authors.
constexpr char kDeepSeekLetters[] =
    R"(\s?[)"
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-)"
    R"(\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-)"
    R"(\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-)"
    R"(\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77})"
    R"(\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-)"
    R"(\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{3CE}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE})"
    R"(\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{390}\x{1FD6}-\x{38A}\x{1FE0}-\x{1FEC}\x{1FF2}-)"
    R"(\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149})"
    R"(\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3})"
    R"(\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-)"
    R"(\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F})"
    R"(\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF})"
    R"(\x{1E900}-\x{1E943})"
    R"(]+)";
constexpr char kDeepSeekMarks[] = R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
constexpr char kAfmoeAsian[] =
    R"([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF})"
    R"(\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF})"
    R"(\x{1100}-\x{11FF}]+)";

#undef CONTRACTIONS
#undef UPPER
#undef LOWER
#undef NOT_HAN
#undef SPACES
#undef CASED_WORDS

struct Entry {
  std::vector<std::string_view> names;
  PreTokenizerKind kind;
};

const std::vector<Entry>& Kinds() {
  static const std::vector<Entry> kKinds = {
      {{"gpt2", "gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion", "granite-docling", "exaone4", "jina-es", "jina-de",
        "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe", "gigachat", "a.x-4.0", "mellum"},
       {{kGpt2}}},
      {{"llama-3", "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {{kWordsThreeDigits}, false, true}},
      {{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, {{kWordsThreeDigits}}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"}, {{kOneDigit, kGpt2}}},
      // Hugging Face's own Qwen2 files ask for NFC, so the kind does; those that borrow its split do not.
      {{"qwen2"}, {{kWordsOneDigit}, true}},
      {{"deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "kormo", "solar-open", "grok-2"}, {{kWordsOneDigit}}},
      {{"qwen35"}, {{kWordsWithMarks}, true}},
      {{"laguna"}, {{kLines, kWordsOneDigit}}},
      {{"ufakzeka"}, {{kNoContractions}}},
      {{"jais-2", "jais2"}, {{kJais2}}},
      {{"tekken"}, {{kTekken}, false, true}},
      {{"gpt-4o", "llama4", "minimax-m2", "granite-emb-multi"}, {{kGpt4o}}},
      {{"youtu"},
       {{R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C})"
         R"(\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
         kYoutu}}},
      {{"tiny_aya"}, {{kThousands, kGpt4o}}},
      {{"kimi-k2"}, {{kKimi}}},
      {{"deepseek-llm"}, {{kLineEnd, kDeepSeekLetters, kDeepSeekMarks, R"(\s+$)", kDeepSeekAsian, R"(\p{N}+)"}}},
      {{"deepseek-coder"}, {{kLineEnd, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepSeekAsian, kOneDigit}}},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm"}, {{kThreeDigits, kChineseAndKana, kDeepSeek3Words}}},
      {{"falcon"}, {{R"([\p{P}$+<=>^~|`]+)", kGpt2, "[0-9][0-9][0-9]"}}},
      {{"default"}, {{R"([\p{P}$+<=>^~|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}}},
      {{"poro-chat", "bloom", "gpt3-finnish"}, {{kBloom}}},
      {{"viking"}, {{kBloom, kOneDigit}}},
      {{"chameleon"},
       {{"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", R"([\t\n]|    |  )", kOneDigit, R"([\p{P}!-/:-@\[-`{-~])",
         kGpt2}}},
      {{"superbpe"}, {{kThousands}}},
      {{"bailingmoe", "bailingmoe2", "llada-moe"}, {{kBailing}}},
      {{"seed-coder"}, {{kSeedCoder}}},
      {{"afmoe"}, {{kThousands, kAfmoeAsian, kDeepSeek3Words}}},
      {{"exaone-moe"}, {{kExaoneMoe}}},
  };
  return kKinds;
}

}  // namespace

Result<PreTokenizerKind> FindPreTokenizerKind(std::string_view name) {
  std::string known;
  for (const Entry& entry : Kinds()) {
    for (std::string_view candidate : entry.names) {
      if (candidate == name) return entry.kind;
      known.append(known.empty() ? "" : ", ").append(candidate);
    }
  }
  return Unimplemented("pre-tokenizer " + Quoted(name) + ": expected one of " + known);
}

}  // namespace coppice
