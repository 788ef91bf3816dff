#include "core/device.h"

#include "core/check.h"
#include "core/exhaustion.h"

namespace coppice {

Result<std::unique_ptr<Graph>> CaptureGraph(Device& device, Stream stream, const std::function<Status()>& enqueue) {
  COPPICE_RETURN_IF_ERROR(device.BeginCapture(stream));
  const Status enqueued = CatchExhaustion("capturing a graph", enqueue);
  Result<std::unique_ptr<Graph>> graph = device.EndCapture(stream);  // also after an error: the stream must leave the capture
  COPPICE_RETURN_IF_ERROR(enqueued);
  return graph;
}

}  // namespace coppice
