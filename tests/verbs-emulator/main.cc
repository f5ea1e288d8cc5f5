// verbs-emulator: makes fabrics of software NICs, shows them, and hurts them on command.
#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>

#include "control.h"

namespace mc::emu {
namespace {

constexpr const char* kUsage =
    R"(usage: verbs-emulator [--fabric FILE] COMMAND   (FILE: default $VERBS_EMU_FABRIC)
  create [hosts=2] [nics=1] [link=infiniband|ethernet] [rate=0] [latency=0] [mtu=4096] [prefix=emu]
         [names=A,B,...: of the NICs of each host, instead of nics and prefix]
  show                         NICs, with counters, and fault rules
  port NIC up|down             the link; flap is down and up at once
  port NIC flap
  silent NIC on|off            swallows all traffic while the port looks healthy
  nic NIC remove|insert        taken out of its host, put in again
  set NIC [rate=R] [latency=T] R: bytes a second as 4GB, 100Gbit, 0 for no limit; T: 5us, 1ms
          [wr=N] [cqe=N]       max_qp_wr and max_cqe of who asks from now on; 0: the most
          [transport=infiniband|iwarp|unspecified]
          [register=T]         what a GiB of memory takes to be registered
          [mr=N]               max_mr_size, in bytes; 0: the most
          [late=0|1]           what is written to a device's memory is seen there once it was read
  gid NIC INDEX ADDRESS|none   another GID, with GID_CHANGE; as an IPv6 or IPv4 address
  lid NIC NUMBER               another LID, with LID_CHANGE
  pkey NIC INDEX KEY|none      another partition key, with PKEY_CHANGE
  link NIC infiniband|ethernet with the addresses of a new fabric
  cq-error NIC                 its completion queues are dead, with CQ_ERR
  retry PERCENT                of the real time; 0: only `expire` ends retries
  expire                       ends all retries that are under way
  qp NUMBER error              QP to the error state, with its async event
  rule ACTION[=ARGUMENT] [nic=NIC] [op=write,read,send,...] [qp=N] [bytes=MIN] [skip=N] [count=M]
       [chance=0.1] [seed=S]   prints its id; count=1 unless given, 0 for ever
       actions: error=STATUS partial=STATUS delay=TIME drop corrupt lose link-down remove qp-fatal
       STATUS is a number of ibv_wc_status, or e.g. remote-access, retry, general
  unrule ID|all
  reap                         frees what dead processes left
NIC: HOST:NAME (0:emu1), or its index in `show`
)";

using Pairs = std::map<std::string, std::string>;

[[noreturn]] void die(const std::string& text) {
  fprintf(stderr, "verbs-emulator: %s\n", text.c_str());
  exit(2);
}

uint64_t number(const std::string& text, const char* what,
                const std::vector<std::pair<const char*, double>>& units = {}) {
  char* end = nullptr;
  double value = strtod(text.c_str(), &end);
  bool known = end != text.c_str() && value >= 0 && *end == 0;
  for (const auto& [unit, factor] : units) {
    if (end == text.c_str() || strcmp(end, unit) != 0) continue;
    value *= factor;
    known = value >= 0;
  }
  if (!known) die(std::string(what) + " '" + text + "' is not a number with a known unit");
  return uint64_t(value);
}

uint64_t rate(const std::string& text) {
  return number(text, "rate",
                {{"GB", 1e9},
                 {"MB", 1e6},
                 {"KB", 1e3},
                 {"GiB", 1073741824.0},
                 {"MiB", 1048576.0},
                 {"Gbit", 1.25e8},
                 {"Mbit", 1.25e5}});
}
uint64_t duration(const std::string& text) {
  return number(text, "time", {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}});
}

Pairs pairs(const std::vector<std::string>& words, size_t from, const std::string& allowed) {
  Pairs out;
  for (size_t i = from; i < words.size(); ++i) {
    size_t equals = words[i].find('=');
    std::string key = words[i].substr(0, equals);
    if (equals == std::string::npos ||
        (" " + allowed + " ").find(" " + key + " ") == std::string::npos)
      die("'" + words[i] + "' is not understood here: known are " + allowed);
    out[key] = words[i].substr(equals + 1);
  }
  return out;
}

uint32_t nic_of(const Fabric& fabric, const std::string& name) {
  auto found = nic_named(fabric, name);
  if (!found) die("no NIC '" + name + "': give HOST:NAME or an index that show prints");
  return *found;
}

void create(const std::string& path, const std::vector<std::string>& words) {
  FabricOptions options;
  for (const auto& [key, value] :
       pairs(words, 1, "hosts nics link rate latency mtu prefix names")) {
    if (key == "hosts") options.hosts = uint32_t(number(value, "hosts"));
    if (key == "nics") options.nics = uint32_t(number(value, "nics"));
    if (key == "rate") options.rate = rate(value);
    if (key == "latency") options.latency_ns = duration(value);
    if (key == "prefix") options.prefix = value;
    if (key == "names") {
      for (size_t from = 0, comma; from <= value.size(); from = comma + 1) {
        comma = std::min(value.find(',', from), value.size());
        options.names.push_back(value.substr(from, comma - from));
      }
      options.nics = uint32_t(options.names.size());
    }
    if (key == "link") {
      options.ethernet = value == "ethernet";
      if (value != "ethernet" && value != "infiniband") die("link is ethernet or infiniband");
    }
    if (key == "mtu") {
      uint64_t mtu = number(value, "mtu");
      options.mtu = 0;
      for (uint32_t code = IBV_MTU_256; code <= IBV_MTU_4096; ++code)
        if (uint64_t{128} << code == mtu) options.mtu = code;
      if (options.mtu == 0) die("mtu is 256, 512, 1024, 2048 or 4096");
    }
  }
  std::string why;
  if (!Fabric::create(path, options, &why)) die(why);
}

constexpr const char* kActionNames[kActions] = {
    "error", "partial", "delay", "drop", "corrupt", "lose", "link-down", "remove", "qp-fatal"};
constexpr std::pair<const char*, uint32_t> kOpcodes[] = {{"write", IBV_WR_RDMA_WRITE},
                                                         {"write-imm", IBV_WR_RDMA_WRITE_WITH_IMM},
                                                         {"send", IBV_WR_SEND},
                                                         {"send-imm", IBV_WR_SEND_WITH_IMM},
                                                         {"read", IBV_WR_RDMA_READ}};
constexpr std::pair<const char*, ibv_wc_status> kStatuses[] = {
    {"local-length", IBV_WC_LOC_LEN_ERR},
    {"local-protection", IBV_WC_LOC_PROT_ERR},
    {"remote-invalid", IBV_WC_REM_INV_REQ_ERR},
    {"remote-access", IBV_WC_REM_ACCESS_ERR},
    {"remote-operation", IBV_WC_REM_OP_ERR},
    {"retry", IBV_WC_RETRY_EXC_ERR},
    {"rnr", IBV_WC_RNR_RETRY_EXC_ERR},
    {"fatal", IBV_WC_FATAL_ERR},
    {"general", IBV_WC_GENERAL_ERR}};

uint64_t status_of(const std::string& text) {
  for (const auto& [name, status] : kStatuses)
    if (text == name) return status;
  uint64_t value = text.empty() ? uint64_t{IBV_WC_GENERAL_ERR} : number(text, "status");
  if (value == 0 || value > IBV_WC_TM_RNDV_INCOMPLETE)
    die("'" + text + "' is no status of an error");
  return value;
}

uint32_t opcodes_of(const std::string& text) {
  uint32_t mask = 0;
  for (size_t from = 0; from <= text.size();) {
    size_t comma = std::min(text.find(',', from), text.size());
    uint32_t bit = 0;
    for (const auto& [name, opcode] : kOpcodes)
      if (text.substr(from, comma - from) == name) bit = 1u << opcode;
    if (bit == 0) die("op '" + text + "': known are write write-imm send send-imm read");
    mask |= bit;
    from = comma + 1;
  }
  return mask;
}

void rule(Fabric& fabric, const std::vector<std::string>& words) {
  size_t equals = words[1].find('=');
  std::string name = words[1].substr(0, equals);
  std::string argument = equals == std::string::npos ? "" : words[1].substr(equals + 1);
  Rule one{};
  one.nic = -1;
  one.count = 1;
  bool known = false;
  for (uint32_t i = 0; i < kActions; ++i) {
    if (name != kActionNames[i]) continue;
    one.action = Action(i);
    known = true;
  }
  if (!known) die("rule '" + name + "' is none of the actions that --help lists");
  if (one.action == Action::kError || one.action == Action::kPartial)
    one.argument = status_of(argument);
  if (one.action == Action::kDelay) one.argument = duration(argument);
  for (const auto& [key, value] : pairs(words, 2, "nic op qp bytes skip count chance seed")) {
    if (key == "nic") one.nic = int32_t(nic_of(fabric, value));
    if (key == "op") one.opcodes = opcodes_of(value);
    if (key == "qp") one.qp_number = uint32_t(number(value, "qp"));
    if (key == "bytes") one.bytes_min = number(value, "bytes");
    if (key == "skip") one.skip = number(value, "skip");
    if (key == "count") one.count = number(value, "count");
    if (key == "seed") one.random = number(value, "seed");
    if (key == "chance") one.per_million = uint32_t(strtod(value.c_str(), nullptr) * 1e6);
  }
  uint32_t id = add_rule(fabric, one);
  if (id == 0) die("the rules are full: remove some with unrule");
  printf("%u\n", id);
}

void show(Fabric& fabric) {
  for (uint32_t i = 0; i < fabric->nics; ++i) {
    const Nic& nic = fabric->nic[i];
    printf(
        "%u %u:%s %s %s%s rate %llu latency_ns %llu tx %llu rx %llu done %llu failed %llu"
        " retries %llu downs %u\n",
        i, nic.host, nic.name, nic.ethernet != 0 ? "ethernet" : "infiniband",
        nic.present.load() == 0 ? "removed"
        : nic.up.load() != 0    ? "up"
                                : "down",
        nic.silent.load() != 0 ? " silent" : "", (unsigned long long)nic.rate.load(),
        (unsigned long long)nic.latency_ns.load(), (unsigned long long)nic.tx_bytes.load(),
        (unsigned long long)nic.rx_bytes.load(), (unsigned long long)nic.done.load(),
        (unsigned long long)nic.failed.load(), (unsigned long long)nic.retries.load(),
        nic.downs.load());
  }
  for (const Rule& one : rules(fabric))
    printf("rule %u %s hits %llu left %lld\n", one.id, kActionNames[uint32_t(one.action)],
           (unsigned long long)one.hits, (long long)one.count);
}

ibv_transport_type transport_of(const std::string& text) {
  if (text == "infiniband") return IBV_TRANSPORT_IB;
  if (text == "iwarp") return IBV_TRANSPORT_IWARP;
  if (text != "unspecified") die("transport is infiniband, iwarp or unspecified");
  return IBV_TRANSPORT_UNSPECIFIED;
}

ibv_gid gid_of(const std::string& text) {
  ibv_gid gid{};
  if (text == "none" || inet_pton(AF_INET6, text.c_str(), gid.raw) == 1) return gid;
  if (inet_pton(AF_INET, text.c_str(), gid.raw + 12) != 1) die("'" + text + "' is no address");
  gid.raw[10] = gid.raw[11] = 0xff;
  return gid;
}

uint32_t index_of(const std::string& text, uint32_t limit) {
  const uint64_t index = number(text, "index");
  if (index >= limit) die("index " + text + ": there are " + std::to_string(limit));
  return uint32_t(index);
}

uint16_t key_of(const std::string& text) {
  return text == "none" ? 0 : uint16_t(strtoul(text.c_str(), nullptr, 0));
}

bool change_nic(Fabric& fabric, const std::vector<std::string>& words) {
  if (words.size() < 3) return false;
  const std::string &verb = words[0], &what = words[2];
  uint32_t nic = nic_of(fabric, words[1]);
  if (verb == "set") {
    uint32_t wr = fabric->nic[nic].max_qp_wr, cqe = fabric->nic[nic].max_cqe;
    for (const auto& [key, value] :
         pairs(words, 2, "rate latency wr cqe transport register mr late")) {
      if (key == "rate") set_rate(fabric, nic, rate(value));
      if (key == "latency") set_latency(fabric, nic, duration(value));
      if (key == "wr") wr = uint32_t(number(value, "wr"));
      if (key == "cqe") cqe = uint32_t(number(value, "cqe"));
      if (key == "register") set_register_time(fabric, nic, duration(value));
      if (key == "mr") set_mr_limit(fabric, nic, number(value, "mr"));
      if (key == "late") set_late(fabric, nic, number(value, "late") != 0);
      if (key == "transport") set_transport(fabric, nic, transport_of(value));
    }
    set_limits(fabric, nic, wr, cqe);
    return true;
  }
  if (verb == "gid" && words.size() == 4)
    return set_gid(fabric, nic, index_of(what, kGidsMax), gid_of(words[3])), true;
  if (verb == "pkey" && words.size() == 4)
    return set_pkey(fabric, nic, index_of(what, kPkeysMax), key_of(words[3])), true;
  if (words.size() != 3) return false;
  if (verb == "lid") return set_lid(fabric, nic, uint16_t(number(what, "LID"))), true;
  if (verb == "link") set_link(fabric, nic, what == "ethernet");
  if (verb == "link") return what == "ethernet" || what == "infiniband";
  if (verb == "port" && (what == "down" || what == "flap")) set_port(fabric, nic, false);
  if (verb == "port" && (what == "up" || what == "flap")) set_port(fabric, nic, true);
  if (verb == "port") return what == "up" || what == "down" || what == "flap";
  if (verb == "silent") set_silent(fabric, nic, what == "on");
  if (verb == "silent") return what == "on" || what == "off";
  set_present(fabric, nic, what == "insert");
  return what == "insert" || what == "remove";
}

bool change(Fabric& fabric, const std::vector<std::string>& words) {
  const std::string& verb = words[0];
  for (const char* of_nic : {"port", "silent", "nic", "set", "gid", "lid", "pkey", "link"})
    if (verb == of_nic) return change_nic(fabric, words);
  if (verb == "cq-error" && words.size() == 2)
    return fail_cqs(fabric, nic_of(fabric, words[1])), true;
  if (verb == "show" && words.size() == 1) return show(fabric), true;
  if (verb == "reap" && words.size() == 1) return fabric.reap(), true;
  if (verb == "expire" && words.size() == 1) return expire_retries(fabric), true;
  if (verb == "retry" && words.size() == 2)
    return set_retry_percent(fabric, uint32_t(number(words[1], "percent"))), true;
  if (verb == "rule" && words.size() >= 2) return rule(fabric, words), true;
  if (verb == "unrule" && words.size() == 2) {
    uint32_t id = words[1] == "all" ? 0 : uint32_t(number(words[1], "id"));
    if (!remove_rule(fabric, id)) die("no rule " + words[1]);
    return true;
  }
  if (verb == "qp" && words.size() == 3 && words[2] == "error") {
    if (!break_qp(fabric, uint32_t(number(words[1], "number")))) die("no queue pair " + words[1]);
    return true;
  }
  return false;
}

int run(std::vector<std::string> words) {
  const char* named = getenv("VERBS_EMU_FABRIC");
  std::string path = named != nullptr ? named : "";
  if (words.size() >= 2 && words[0] == "--fabric") {
    path = words[1];
    words.erase(words.begin(), words.begin() + 2);
  }
  if (words.empty() || words[0] == "--help") {
    fputs(kUsage, words.empty() ? stderr : stdout);
    return words.empty() ? 2 : 0;
  }
  if (path.empty()) die("no fabric: give --fabric FILE or set VERBS_EMU_FABRIC");
  if (words[0] == "create") return create(path, words), 0;
  std::string why;
  std::shared_ptr<Fabric> fabric = Fabric::open(path, &why);
  if (fabric == nullptr) die(why);
  if (!change(*fabric, words)) die("'" + words[0] + "' is not used so: see --help");
  return 0;
}

}  // namespace
}  // namespace mc::emu

int main(int argc, char** argv) {
  return mc::emu::run(std::vector<std::string>(argv + 1, argv + argc));
}
