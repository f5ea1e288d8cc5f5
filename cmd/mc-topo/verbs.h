// Declares the verbs of mc-topo. Each add_ function registers one with the program.
#pragma once
#include <cstdio>
#include <string>

#include "cmd/command.h"
#include "topo/discover/discover.h"

namespace mc::topo {

// The source of a verb's machine.
struct TopoOptions {
  std::string sysfs, xml, node, cluster_key;
  void describe(OptionList& v) {
    v("sysfs", sysfs, "read the recorded sysfs in this folder instead of the live machine");
    v("xml", xml, "read this file instead: hwloc XML (lstopo) or NCCL topology XML");
    v("node", node, "ask the running node with this control address what it runs on");
    v("cluster-key", cluster_key, "file with the cluster's secret, for --node");
  }
  bool is_live() const { return sysfs.empty() && xml.empty() && node.empty(); }
  Result<Machine> machine() const;
};

// What discover_any takes, or "node:HOST:PORT" for a running node.
Result<Machine> machine_named(const std::string& word);

// Prints to stdout. Names come from untrusted files: control characters are replaced.
inline void put(std::string text) {
  for (char& c : text) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f) c = '?';
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void add_show(Program& program);
void add_tiers(Program& program);
void add_matrix(Program& program);
void add_pair(Program& program);
void add_probe(Program& program);
void add_check(Program& program);
void add_diff(Program& program);
void add_capture(Program& program);

}  // namespace mc::topo
