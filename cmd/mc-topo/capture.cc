#include "topo/discover/capture.h"

#include "base/json.h"
#include "cmd/mc-topo/verbs.h"

namespace mc::topo {
namespace {

struct CaptureOptions {
  std::string folder;  // positional
  std::string sysfs = "/sys";
  void describe(OptionList& v) {
    v("sysfs", sysfs, "record from this folder instead of the live machine");
  }
};

}  // namespace

void add_capture(Program& program) {
  program.verb<CaptureOptions>(
      "capture", "record this machine as a folder, to look at elsewhere",
      [](Verb& v, CaptureOptions& o) {
        v.positional("DIR", o.folder, "a new folder");
        v.example("mc-topo capture /tmp/here && tar -cJf here.tar.xz -C /tmp here",
                  "a recording to send along with a question");
        v.example("mc-topo check --sysfs /tmp/here", "look at it elsewhere");
        v.run_with([&o](Context& context) -> Result<int> {
          MC_TRY(const Captured done, capture(o.sysfs, o.folder));
          if (context.json) {
            put(dump_json({{"folder", o.folder},
                           {"files", done.files},
                           {"links", done.links},
                           {"bytes", done.bytes}}) +
                "\n");
          } else {
            put(strf("%s: %zu files, %zu links, %llu bytes\n", o.folder.c_str(), done.files,
                     done.links, static_cast<unsigned long long>(done.bytes)));
          }
          return 0;
        });
      });
}

}  // namespace mc::topo
