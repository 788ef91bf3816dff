// Lengths of MMLU's 57 subjects (Hendrycks et al. 2021): the test split's questions and the five examples of each, by Llama 2's
// tokenizer, in the format of the benchmark's authors. 27 tokens an example and 29 a question are added: RelayAttention's table 1
// has ranges of 379 to 2,895 and 55 to 1,219 tokens for what would else be 247 to 2,758 and 25 to 1,190. Layer: cli.
#pragma once

#include <cstdint>

namespace coppice::cli {

struct MmluSubject {
  int32_t questions = 0;
  int32_t five_shots = 0;                          // tokens before a question: a line that names the subject, and five examples
  double question_median = 0, question_sigma = 0;  // of a log-normal distribution
};
inline constexpr int32_t kMmluHead = 17;                                           // tokens of the line
inline constexpr int32_t kMmluShots = 5, kMmluShortest = 55, kMmluLongest = 1219;  // tokens of a question
inline constexpr int32_t kMmluMostQuestions = 1534;                                // of a subject

inline constexpr MmluSubject kMmluSubjects[] = {
    {100, 455, 95, 0.19},     // abstract algebra
    {135, 467, 98, 0.23},     // anatomy
    {152, 727, 108, 0.26},    // astronomy
    {100, 716, 112, 0.26},    // business ethics
    {265, 544, 99, 0.19},     // clinical knowledge
    {144, 595, 112, 0.33},    // college biology
    {100, 662, 112, 0.32},    // college chemistry
    {100, 915, 137, 0.33},    // college computer science
    {100, 691, 110, 0.27},    // college mathematics
    {173, 612, 127, 0.50},    // college medicine
    {102, 588, 118, 0.22},    // college physics
    {100, 484, 93, 0.35},     // computer security
    {235, 415, 77, 0.17},     // conceptual physics
    {114, 707, 132, 0.30},    // econometrics
    {145, 573, 81, 0.17},     // electrical engineering
    {378, 665, 100, 0.25},    // elementary mathematics
    {126, 697, 140, 0.32},    // formal logic
    {100, 550, 91, 0.18},     // global facts
    {310, 636, 114, 0.31},    // high school biology
    {203, 607, 114, 0.34},    // high school chemistry
    {100, 999, 133, 0.45},    // high school computer science
    {165, 2893, 402, 0.33},   // high school european history
    {198, 513, 82, 0.18},     // high school geography
    {193, 579, 106, 0.21},    // high school government and politics
    {390, 499, 103, 0.23},    // high school macroeconomics
    {270, 631, 105, 0.25},    // high school mathematics
    {238, 500, 105, 0.24},    // high school microeconomics
    {151, 643, 132, 0.27},    // high school physics
    {545, 644, 97, 0.28},     // high school psychology
    {216, 906, 155, 0.30},    // high school statistics
    {204, 2316, 367, 0.23},   // high school us history
    {237, 1372, 399, 0.35},   // high school world history
    {223, 437, 82, 0.15},     // human aging
    {131, 466, 92, 0.26},     // human sexuality
    {121, 757, 128, 0.21},    // international law
    {108, 502, 104, 0.25},    // jurisprudence
    {163, 556, 101, 0.27},    // logical fallacies
    {112, 776, 108, 0.29},    // machine learning
    {103, 396, 77, 0.14},     // management
    {234, 532, 95, 0.17},     // marketing
    {100, 474, 92, 0.17},     // medical genetics
    {783, 421, 80, 0.26},     // miscellaneous
    {346, 595, 105, 0.23},    // moral disputes
    {895, 765, 148, 0.05},    // moral scenarios
    {306, 743, 108, 0.28},    // nutrition
    {311, 438, 92, 0.26},     // philosophy
    {324, 673, 102, 0.26},    // prehistory
    {282, 833, 143, 0.27},    // professional accounting
    {1534, 1751, 304, 0.36},  // professional law
    {272, 1234, 241, 0.31},   // professional medicine
    {612, 691, 112, 0.28},    // professional psychology
    {110, 540, 90, 0.27},     // public relations
    {245, 1327, 191, 0.43},   // security studies
    {201, 561, 104, 0.21},    // sociology
    {100, 539, 96, 0.18},     // us foreign policy
    {166, 468, 92, 0.24},     // virology
    {171, 382, 76, 0.11},     // world religions
};

}  // namespace coppice::cli
