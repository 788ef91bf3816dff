// A batch's files beside its output, for a run that goes on after a kill: the KV of prefixes that many requests share. That the
// folder is there says that the run before did not come to its end. Losing it costs time, never answers, so nothing here is an
// error. Layer: openai.
#pragma once

#include <string>

namespace coppice::openai {

class ResumeFolder {
 public:
  // Finds or makes OUTPUT.resume; `output` exists. A folder that cannot be made keeps nothing.
  explicit ResumeFolder(const std::string& output);

  // An earlier run was killed or interrupted.
  bool was_there() const { return was_there_; }
  // Where the prefix of this name, 32 hex digits, is kept; empty if nothing is kept.
  std::string PathOf(const std::string& name) const;
  // Whether the disk has as much room left as the file at `path` took: what can be computed again must not keep answers from being
  // written.
  static bool LeavesRoom(const std::string& path);
  // The job is done: removes what PathOf named, in this run or an earlier one, and the folder if nothing else is in it.
  void Remove();

 private:
  std::string path_;
  bool usable_ = false, was_there_ = false;
};

}  // namespace coppice::openai
