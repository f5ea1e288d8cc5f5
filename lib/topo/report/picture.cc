#include "topo/report/picture.h"

#include <algorithm>

#include "base/result.h"
#include "topo/formats/xml.h"
#include "topo/model/gpu_links.h"
#include "topo/model/tiers.h"
#include "topo/model/tree.h"
#include "topo/report/labels.h"

namespace mc::topo {
namespace {

constexpr double kCardWidth = 216, kGap = 10, kHead = 24, kLine = 15, kRowWidth = 1200;

struct Colours {
  const char *fill, *edge;
};
Colours colours(Leaf::Kind kind) {
  switch (kind) {
    case Leaf::Kind::kGpu: return {"#dcf0d5", "#4f8f3a"};
    case Leaf::Kind::kRdma: return {"#d8e6f8", "#3d6fb0"};
    case Leaf::Kind::kNet: return {"#eeeeee", "#888888"};
    default: return {"#faebd2", "#b98a36"};
  }
}

// Valid in XML whatever the name was.
std::string shown(std::string text, size_t most) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  if (text.size() > most) text = text.substr(0, most - 2) + "..";
  return xml_escaped(text);
}

std::string rectangle(double x, double y, double w, double h, Colours c, double edge) {
  return strf(
      "<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" rx=\"6\" fill=\"%s\" "
      "stroke=\"%s\" stroke-width=\"%g\"/>\n",
      x, y, w, h, c.fill, c.edge, edge);
}

std::string words(double x, double y, const char* style, const std::string& text) {
  return strf("<text x=\"%g\" y=\"%g\" class=\"%s\">%s</text>\n", x, y, style, text.c_str());
}

// A rectangle with content, drawn at a position.
struct Block {
  double width = 0, height = 0;
  std::vector<std::pair<double, double>> offsets;  // of the parts
  std::vector<Block> parts;
  std::string title, hint;  // of a box
  DeviceLabel label;
  Leaf::Kind kind{};
  bool is_card = false;
};

// Parts from left to right, in rows no wider than `most` (a single part may be).
void flow(Block& box, double most) {
  double x = kGap, y = box.title.empty() ? kGap : kHead + kGap, row = 0;
  box.width = 0;
  for (const Block& part : box.parts) {
    if (x > kGap && x + part.width + kGap > most) {
      x = kGap;
      y += row + kGap;
      row = 0;
    }
    box.offsets.emplace_back(x, y);
    x += part.width + kGap;
    row = std::max(row, part.height);
    box.width = std::max(box.width, x);
  }
  box.height = y + row + (box.parts.empty() ? 0 : kGap);
}

Block card_block(const Machine& machine, const TierTable& table, const Leaf& leaf) {
  Block block;
  block.is_card = true;
  block.kind = leaf.kind;
  block.label = label_of(machine, table, leaf);
  block.width = kCardWidth;
  block.height = kHead + kLine * static_cast<double>(block.label.lines.size()) + 4;
  return block;
}

// Labels of one branch below each other, in two columns when they are many.
Block stack_of(const Machine& machine, const TierTable& table, const std::vector<Leaf>& leaves) {
  Block stack;
  const size_t columns = leaves.size() > 8 ? 3 : leaves.size() > 6 ? 2 : 1;
  for (const Leaf& leaf : leaves) stack.parts.push_back(card_block(machine, table, leaf));
  std::vector<double> bottom(columns, 0);
  for (size_t i = 0; i < stack.parts.size(); ++i) {
    const size_t column = i % columns;
    stack.offsets.emplace_back(static_cast<double>(column) * (kCardWidth + kGap), bottom[column]);
    bottom[column] += stack.parts[i].height + kGap;
  }
  stack.width = static_cast<double>(columns) * (kCardWidth + kGap) - kGap;
  stack.height = *std::max_element(bottom.begin(), bottom.end()) - kGap;
  return stack;
}

// A port of a switch that leads to one device is not drawn: its box would say nothing more.
Block branch_block(const Machine& machine, const TierTable& table, const Branch& branch, bool top) {
  Block box;
  std::vector<Leaf> leaves = branch.leaves;
  std::vector<Block> below;
  for (const auto& [name, child] : branch.bridges) {
    const Chain chain = chain_from(name, child);
    if (!top && chain.end->bridges.empty() && chain.end->leaves.size() == 1) {
      leaves.push_back(chain.end->leaves[0]);
      continue;
    }
    Block inner = branch_block(machine, table, *chain.end, false);
    inner.title = chain.names.back();
    for (const std::string& n : chain.names) inner.hint += (inner.hint.empty() ? "" : " > ") + n;
    below.push_back(std::move(inner));
  }
  if (!leaves.empty()) box.parts.push_back(stack_of(machine, table, leaves));
  for (Block& inner : below) box.parts.push_back(std::move(inner));
  return box;
}

// Sizes from the inside out; a bridge's one box goes below its own devices.
void lay_out(Block& box, double most, bool top) {
  for (Block& part : box.parts) {
    if (!part.is_card && part.offsets.empty()) lay_out(part, most - 2 * kGap, false);
  }
  const bool down = !top && box.parts.size() <= 2 && box.parts[0].title.empty();
  flow(box, down ? 0 : most);
}

void draw(const Block& block, double x, double y, int depth, std::string& out) {
  if (block.is_card) {
    Colours c = colours(block.kind);
    if (block.label.bad) c = {"#f9d9d6", "#c0392b"};
    out += rectangle(x, y, block.width, block.height, c, 1.2);
    out += words(x + 8, y + 17, "b", shown(block.label.title, 26));
    double line = y + 17;
    for (const std::string& text : block.label.lines) {
      out += words(x + 8, line += kLine, "s", shown(text, 34));
    }
    return;
  }
  if (!block.title.empty()) {
    const char* fill = depth == 0 ? "#fafafa" : depth % 2 == 1 ? "#ffffff" : "#f4f4f8";
    out += std::string("<g>") +
           (block.hint.empty() ? "" : "<title>" + shown(block.hint, 400) + "</title>");
    out += rectangle(x, y, block.width, block.height, {fill, depth == 0 ? "#444444" : "#aaaaaa"},
                     depth == 0 ? 1.6 : 1);
    out += words(x + 8, y + 17, depth == 0 ? "b" : "m", shown(block.title, depth == 0 ? 90 : 28));
    out += "</g>\n";
  }
  for (size_t i = 0; i < block.parts.size(); ++i) {
    const auto& [dx, dy] = block.offsets[i];
    draw(block.parts[i], x + dx, y + dy, block.title.empty() ? depth : depth + 1, out);
  }
}

std::string legend(double x, double y) {
  std::string out;
  const std::pair<Leaf::Kind, const char*> kinds[] = {{Leaf::Kind::kGpu, "GPU"},
                                                      {Leaf::Kind::kRdma, "RDMA device"},
                                                      {Leaf::Kind::kNet, "network device"},
                                                      {Leaf::Kind::kDisk, "NVMe disk"}};
  for (const auto& [kind, name] : kinds) {
    out += rectangle(x, y - 11, 14, 14, colours(kind), 1.2) + words(x + 20, y, "s", name);
    x += 130;
  }
  out += rectangle(x, y - 11, 14, 14, {"#f9d9d6", "#c0392b"}, 1.2) +
         words(x + 20, y, "s", "not working");
  return out + words(x + 130, y, "m", "boxes in a NUMA node: PCI bridges");
}

// Every GPU by every other, as `show` prints it: which are linked, and how far the rest is.
constexpr size_t kDrawnGpusMax = 32;
constexpr double kCell = 46, kCellHeight = 18;

std::string gpu_table(const Machine& machine, const std::vector<std::vector<std::string>>& table,
                      double x, double y) {
  std::string out = words(x, y, "b", gpu_matrix_title(machine));
  const auto cell = [&](size_t column, size_t row, const std::string& text, const char* fill) {
    const double left = x + static_cast<double>(column) * kCell;
    const double top = y + 8 + static_cast<double>(row) * kCellHeight;
    out +=
        strf("<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" fill=\"%s\" stroke=\"#cccccc\"/>",
             left, top, kCell, kCellHeight, fill);
    out += strf("<text x=\"%g\" y=\"%g\" class=\"s\" text-anchor=\"middle\">%s</text>\n",
                left + kCell / 2, top + 13, shown(text, 8).c_str());
  };
  for (size_t i = 0; i < table.size(); ++i) {
    cell(i + 1, 0, std::to_string(i), "#f4f4f8");
    cell(0, i + 1, std::to_string(i), "#f4f4f8");
    for (size_t j = 0; j < table.size(); ++j) {
      const std::string& text = table[i][j];
      const bool far = text == "SYS" || text == "NODE" || text == "PHB" || text == "?" || i == j;
      const bool linked = !text.empty() && text.back() >= '0' && text.back() <= '9';
      cell(j + 1, i + 1, i == j ? "" : text, linked ? "#bfe3b0" : far ? "#ffffff" : "#e8f3e3");
    }
  }
  const double below = y + 8 + static_cast<double>(table.size() + 1) * kCellHeight + 16;
  return out + words(x, below, "m", kGpuMatrixLegend);
}

// ---- DOT

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  return out;
}

std::string quoted(const std::string& text) { return "\"" + escaped(text) + "\""; }

class Dot {
 public:
  explicit Dot(const Machine& machine) : machine_(machine), table_(tier_table(machine)) {}

  std::string graph() {
    out_ =
        "graph topology {\n  rankdir=TB; compound=true; label=" + quoted(machine_.source) +
        "; labelloc=t;\n  node [shape=box, style=\"rounded,filled\", fontname=\"sans-serif\"];\n";
    for (const NodeTree& tree : trees_of(machine_)) {
      const std::string id = strf("node%d", tree.node);
      out_ += "  subgraph " + quoted("cluster_" + id) +
              " {\n    label=" + quoted(node_title(tree)) + ";\n    " + quoted(id) +
              " [shape=point, style=invis];\n";
      branch(tree.devices, id, id);
      out_ += "  }\n";
    }
    peers();
    return out_ + "}\n";
  }

 private:
  static std::string id_of(const Leaf& leaf) {
    static constexpr const char* kNames[] = {"gpu", "rdma", "net", "disk"};
    return strf("%s%zu", kNames[static_cast<size_t>(leaf.kind)], leaf.index);
  }
  void edge(const std::string& up, const std::string& down, const std::string& root) {
    out_ +=
        "    " + quoted(up) + " -- " + quoted(down) + (up == root ? " [style=invis]" : "") + ";\n";
  }
  void branch(const Branch& b, const std::string& up, const std::string& root) {
    for (const Leaf& leaf : b.leaves) {
      const DeviceLabel label = label_of(machine_, table_, leaf);
      std::string text = escaped(label.title);
      for (const std::string& line : label.lines) text += "\\n" + escaped(line);
      const Colours c = label.bad ? Colours{"#f9d9d6", "#c0392b"} : colours(leaf.kind);
      out_ += "    " + quoted(id_of(leaf)) + " [label=\"" + text + "\", fillcolor=\"" + c.fill +
              "\", color=\"" + c.edge + "\"];\n";
      edge(up, id_of(leaf), root);
    }
    for (const auto& [name, child] : b.bridges) {
      const Chain chain = chain_from(name, child);
      const std::string id = root + "/" + chain.names.back();
      out_ +=
          "    " + quoted(id) + " [label=" + quoted(chain.names.back()) + ", fillcolor=white];\n";
      edge(up, id, root);
      branch(*chain.end, id, root);
    }
  }
  void peers() {
    bool switches = false;  // one node for all of them: their GPUs' pairs would be a thicket
    for (size_t i = 0; i < machine_.gpus.size(); ++i) {
      const auto& peers = machine_.gpus[i].peers;
      const auto through = std::find_if(peers.begin(), peers.end(),
                                        [](const GpuPeer& peer) { return peer.switched; });
      if (through == peers.end()) continue;
      if (!switches) out_ += "  \"switches\" [label=\"GPU switches\", fillcolor=\"#dcf0d5\"];\n";
      switches = true;
      out_ += strf("  \"gpu%zu\" -- \"switches\" [style=dashed, label=", i) +
              quoted(strf("%s x%u", through->type.c_str(), through->links)) + "];\n";
    }
    const auto numbers = gpu_numbers(machine_);
    for (size_t i = 0; i < machine_.gpus.size(); ++i) {
      for (const GpuPeer& peer : machine_.gpus[i].peers) {
        const auto other = numbers.find(peer.pci);
        if (other == numbers.end() || other->second <= i || peer.switched) continue;
        out_ += strf("  \"gpu%zu\" -- \"gpu%zu\" [style=dashed, constraint=false, label=", i,
                     other->second) +
                quoted(strf("%s x%u", peer.type.c_str(), peer.links)) + "];\n";
      }
    }
  }

  const Machine& machine_;
  const TierTable table_;
  std::string out_;
};

}  // namespace

std::string machine_svg(const Machine& machine) {
  const TierTable table = tier_table(machine);
  std::vector<Block> nodes;
  double width = 820, height = 64;
  for (const NodeTree& tree : trees_of(machine)) {
    Block box = branch_block(machine, table, tree.devices, true);
    box.title = node_title(tree);
    lay_out(box, kRowWidth, true);
    width = std::max(width, box.width);
    height += box.height + 14;
    nodes.push_back(std::move(box));
  }
  auto links = gpu_matrix(machine);
  if (links.size() > kDrawnGpusMax) links.clear();
  const double table_top = height + 8;
  if (!links.empty()) {
    const auto cells = static_cast<double>(links.size() + 1);
    width = std::max(width, cells * kCell);
    height += cells * kCellHeight + 48;
  }
  width += 2 * kGap;
  std::string out = strf(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g "
      "%g\">\n"
      "<style>text{font-family:'DejaVu Sans',Verdana,sans-serif;fill:#222}"
      ".t{font-size:17px;font-weight:bold}.b{font-size:13px;font-weight:bold}"
      ".m{font-size:11px;fill:#666}.s{font-size:11px}</style>\n",
      width, height, width, height);
  out += strf("<rect width=\"%g\" height=\"%g\" fill=\"#ffffff\"/>\n", width, height);
  out += words(kGap, 24, "t", shown(machine.source, 90)) + legend(kGap, 48);
  double y = 64;
  for (Block& box : nodes) {
    box.width = width - 2 * kGap;
    draw(box, kGap, y, 0, out);
    y += box.height + 14;
  }
  if (!links.empty()) out += gpu_table(machine, links, kGap, table_top);
  return out + "</svg>\n";
}

std::string machine_dot(const Machine& machine) { return Dot(machine).graph(); }

}  // namespace mc::topo
