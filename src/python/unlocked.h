// Work without Python's GIL. Layer: python.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace coppice::python {

// The GIL is free while one lives. nanobind::gil_scoped_release likewise, but for a daemon thread that takes it again when the
// interpreter ends: Python before 3.14 ends such a thread by an unwinding that no destructor lets through, which would abort the
// process. The thread stays here instead, as it does from 3.14 on, and ends with the process.
class GilRelease {
 public:
  GilRelease() : thread_(PyEval_SaveThread()) {}
  ~GilRelease() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      for (;;) pause();
    }
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const thread_;
};

// Runs `work` without the GIL.
template <class F>
auto Unlocked(F&& work) {
  const GilRelease release;
  return work();
}

}  // namespace coppice::python
