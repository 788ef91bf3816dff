#include "python/weight_tensors.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "python/tensor.h"

namespace coppice::python {

namespace nb = nanobind;

WeightTensors ToWeightTensors(const nb::dict& tensors) {
  WeightTensors taken;
  for (const auto& [key, value] : tensors) {
    std::string name;
    if (!nb::try_cast<std::string>(key, name)) {
      throw nb::type_error(fmt::format("tensors has the key {}, expected names", nb::cast<std::string>(nb::repr(key))).c_str());
    }
    const std::string place = fmt::format("tensors['{}']", name);
    auto array = TakeTensor<nb::ndarray<nb::ro>>(place, value);
    const bool on_gpu = array.device_type() == nb::device::cuda::value;
    if (!on_gpu && array.device_type() != nb::device::cpu::value) {
      throw nb::value_error(
          fmt::format("{} is on another device (DLPack's {}), expected host memory or a CUDA device", place, array.device_type())
              .c_str());
    }
    const Tensor view = ToTensor(array);
    CheckContiguous(place, view);
    taken.tensors.push_back({.name = std::move(name),
                             .dtype = TakeDType(place, view),
                             .shape = {view.shape, view.shape + view.ndim},
                             .data = view.data,
                             .device = on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu});
    taken.owners.push_back(std::move(array));
  }
  return taken;
}

}  // namespace coppice::python
