// Options of `mc-xfer copy`, and its two ends.
#pragma once
#include <unistd.h>

#include <string>

#include "base/units.h"
#include "cmd/command.h"
#include "xfer/engine.h"

namespace mc::xfer {

struct CopyOptions {
  std::string from, to;
  Bytes bytes;
  bool check = true, progress = false;
  uint32_t parallel = 4;
  Duration timeout = std::chrono::seconds(30);
  std::string cluster_key;
  EngineOptions engine;
  void describe(OptionList& v) {
    v("bytes", bytes, "how much memory to read from the peer; 0: to the end of its first buffer");
    v("check", check, "read back what was written to memory and compare checksums");
    v("parallel", parallel, "pieces of 4 MiB of files under way at a time, 1 to 64");
    v("progress", progress, "show progress even when stderr is not a terminal");
    v("timeout", timeout, "give up on a step, of at most 16 MiB, after this long");
    v("cluster-key", cluster_key, "file with the cluster's secret");
    engine.describe(v);
  }
  bool shows() const { return progress || ::isatty(STDERR_FILENO) != 0; }  // how far it is
};

struct MemoryEnd {
  std::string control;
  uint64_t offset = 0;
  std::string text;  // as it was written
};
struct FilesEnd {
  std::string control;  // empty: this machine
  std::string path;     // as it was written
};
Result<int> copy_files(CopyOptions& o, const Context& context, const FilesEnd& from,
                       const FilesEnd& to);

}  // namespace mc::xfer
