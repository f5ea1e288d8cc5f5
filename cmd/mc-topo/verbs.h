// The verbs of mc-topo: each registers itself with the program.
#pragma once
#include <cstdio>
#include <string>

#include "cmd/command.h"
#include "topo/discover.h"

namespace mc::topo {

struct TopoOptions {
  std::string sysfs;
  void describe(OptionList& v) {
    v("sysfs", sysfs, "read the recorded sysfs in this folder instead of the live machine");
  }
  Result<Machine> machine() const {
    return sysfs.empty() ? discover_live() : discover_sysfs(sysfs);
  }
};

inline void put(const std::string& text) { std::fputs(text.c_str(), stdout); }

void add_show(Program& program);
void add_tiers(Program& program);

}  // namespace mc::topo
