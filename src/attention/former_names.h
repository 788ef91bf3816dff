// Names that fields of machine files and plan dumps had in the version before: readers take a field by its former name where its
// present one is absent. The next version drops them. Layer: attention, private.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace coppice::attention {

struct FormerName {
  std::string_view now, former;
};

// Of "sm" and "probe" of machine files; of "traits" of plan dumps.
inline constexpr auto kFormerMachineNames = std::to_array<FormerName>({
    {"stream_task_with_dense_ns", "stream_task_beside_dense_ns"},
    {"cooperative_launch_ns", "team_launch_ns"},
    {"cooperative_step_ns", "team_step_ns"},
    {"cooperative_two_column_step_ns", "team_wide_step_ns"},
    {"cooperative_two_column_task_ns", "team_wide_task_ns"},
    {"cooperative_short_step_ns", "team_short_step_ns"},
    {"cooperative_merge_ns", "team_merge_ns"},
    {"cooperative_slow_ns", "team_slow_ns"},
    {"cooperative_slow_reads", "team_slow_reads"},
    {"cooperative_unhidden_reread", "team_unhidden_reread"},
    {"overlapped_step_ns", "side_step_ns"},
    {"overlapped_task_ns", "side_task_ns"},
    {"dense_task_overlapped_ns", "dense_task_with_side_ns"},
    {"slowed_by_overlap", "slowed_by_side"},
});
inline constexpr auto kFormerTraitNames = std::to_array<FormerName>({
    {"stream_warps", "stream_lanes"},
    {"cooperative_warps", "team_lanes"},
    {"two_column_rows", "wide_stream_rows"},
});

// The field's place in a JSON object, by its name or else by its former one; end() without either.
template <class Json, size_t n>
auto FindField(const Json& object, std::string_view field, const std::array<FormerName, n>& formers) {
  const auto it = object.find(std::string(field));
  if (it != object.end()) return it;
  const auto former = std::ranges::find(formers, field, &FormerName::now);
  return former != formers.end() ? object.find(std::string(former->former)) : it;
}

}  // namespace coppice::attention
