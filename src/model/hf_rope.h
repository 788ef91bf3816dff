// The rotary embedding that a config.json states, in each spelling that transformers has had.
// Layer: model.
#pragma once

#include "coppice/core/status.h"
#include "model/config.h"
#include "model/families/family.h"
#include "model/object_reader.h"

namespace coppice {

// Fills rope, local_rope and rotary_dim: from rope_parameters (for all layers, or for each kind of them) or from rope_theta,
// rope_scaling and rope_local_base_freq. A file that has both rope_scaling and rope_parameters is read as transformers 5 does
// (modeling_rope_utils.py, convert_rope_params_to_dict). UNIMPLEMENTED names a kind or key of scaling that this build does not
// compute.
// REQUIRES: sizes are read.
Status ReadRope(const ObjectReader& reader, const ConfigDefaults& defaults, ModelConfig* config);

}  // namespace coppice
