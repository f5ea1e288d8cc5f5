// Exports an engine's KV blocks in device memory as metrics of its worker.
//
// Thread: one owner.
#pragma once
#include "base/metrics.h"
#include "serve/engine/engine.h"

namespace mc::serve {

class DeviceKvMetrics {
 public:
  explicit DeviceKvMetrics(Metrics& m)
      : room_(m.gauge("mc_engine_device_blocks", "KV blocks that the device has room for")),
        used_(m.gauge("mc_engine_device_blocks_used",
                      "KV blocks on the device that a pass can reuse")),
        hits_(blocks(m, "hit")),
        uploads_(blocks(m, "uploaded")),
        streamed_(blocks(m, "streamed")),
        evictions_(m.counter("mc_engine_device_evictions_total", "KV blocks that left the device")),
        in_(bytes(m, "in")),
        out_(bytes(m, "out")),
        graph_steps_(m.counter("mc_engine_device_graph_steps_total",
                               "decode steps launched as one graph")) {}
  void update(const DeviceKv& now) {
    room_.set(static_cast<double>(now.blocks));
    used_.set(static_cast<double>(now.used));
    hits_.add(now.hits - last_.hits);
    uploads_.add(now.uploads - last_.uploads);
    streamed_.add(now.streamed - last_.streamed);
    evictions_.add(now.evictions - last_.evictions);
    in_.add(now.bytes_in - last_.bytes_in);
    out_.add(now.bytes_out - last_.bytes_out);
    graph_steps_.add(now.graph_steps - last_.graph_steps);
    last_ = now;
  }

 private:
  static Counter& blocks(Metrics& m, const char* how) {
    return m.counter("mc_engine_device_reads_total",
                     "KV blocks that passes read: on the device, copied to stay, or for one pass",
                     {{"block", how}});
  }
  static Counter& bytes(Metrics& m, const char* way) {
    return m.counter("mc_engine_device_kv_bytes_total",
                     "KV between pool and device: in, to the device; out, new KV", {{"way", way}});
  }
  Gauge &room_, &used_;
  Counter &hits_, &uploads_, &streamed_, &evictions_, &in_, &out_, &graph_steps_;
  DeviceKv last_{};
};

}  // namespace mc::serve
