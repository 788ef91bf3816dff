// How long a step takes beside its attention: matrix products, sampling, the host. By a table that `coppice bench steps` measured
// once on a machine, or by the roofline of a model's weights, without either. Layer: simulate.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::simulate {

// Rows of a step, for one engine.
struct StepRows {
  int32_t prompt = 0;  // tokens of prompts
  int32_t decode = 0;  // samples that decode
  int32_t ended = 0;   // prompts whose last token is among `prompt`: they draw, too
};

class StepTimes {
 public:
  struct Point {
    int32_t rows = 0;
    double seconds = 0;
  };
  // A roofline: what products of a model read and compute. Bytes and flops are those of one row; a row's products of the head count
  // only where it draws.
  struct Products {
    double layer_bytes = 0, layer_flops = 0, layer_row_s = 0;  // all layers; layer_row_s: what ranks exchange of a row
    double head_bytes = 0, head_flops = 0, head_row_s = 0;
    double bytes_per_s = 0, flops_per_s = 0;
    int32_t few_rows = 0;                 // up to which a step has few_fixed_s in place of fixed_s
    double fixed_s = 0, few_fixed_s = 0;  // of a step, beside what its bytes and operations take
  };

  // `prompt`: steps of a prompt's tokens, none of which draws; `decode`: steps of samples. Ascending rows.
  // INVALID_ARGUMENT where one of them is empty, does not ascend or is not positive.
  static Result<StepTimes> FromTable(std::vector<Point> prompt, std::vector<Point> decode);
  static StepTimes FromRoofline(const Products& products);
  // JSON of `coppice bench steps`: {"prompt": [[rows, seconds], ...], "decode": [...], ...}. Other fields are left alone.
  static Result<StepTimes> Parse(std::string_view json);

  // Seconds of a step: between rows of the table on straight lines, beyond it on the last one, or where that falls constant.
  double Seconds(const StepRows& rows) const;

 private:
  StepTimes() = default;
  std::vector<Point> prompt_, draws_;  // draws_: what rows that draw take more
};

}  // namespace coppice::simulate
