// Byte-pair encoding over ids, by merges in a hash table of pairs.
#include <algorithm>
#include <array>
#include <atomic>
#include <queue>

#include "model/tokens/text.h"
#include "model/tokens/token_model.h"
#include "model/tokens/unicode.h"

namespace mc::model {
namespace {

constexpr uint32_t kNever = UINT32_MAX;
constexpr size_t kShort = 48;  // symbols of a piece that is merged by looking at all of them

// Merges by their two parts.
class PairTable {
 public:
  struct Join {
    uint32_t rank = kNever;
    int32_t made = -1;
  };
  explicit PairTable(const std::vector<Merge>& merges) {
    size_t slots = 64;
    while (slots < merges.size() * 2) slots *= 2;
    slots_.resize(slots);
    uint32_t rank = 0;
    for (const Merge& m : merges) {  // of two of one pair the last counts
      Slot& slot = slots_[place_of(key_of(m.left, m.right))];
      slot = {key_of(m.left, m.right), {rank++, m.made}};
    }
  }
  Join find(int32_t left, int32_t right) const {
    return slots_[place_of(key_of(left, right))].join;
  }

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    Join join;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t place_of(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    uint64_t mixed = key * 0x9E3779B97F4A7C15u;
    mixed ^= mixed >> 32;
    size_t at = mixed & mask;
    while (slots_[at].key != key && slots_[at].key != UINT64_MAX) at = (at + 1) & mask;
    return at;
  }
  std::vector<Slot> slots_;
};

// A piece while it is merged: ids, and the merge of each with the one after it.
struct Symbols {
  std::vector<int32_t> ids;
  std::vector<PairTable::Join> joins;
};

class Bpe final : public TokenModel {
 public:
  Bpe(PieceTable vocab, size_t ids, const std::vector<Merge>& merges, BpeOptions options)
      : vocab_(std::move(vocab)), pairs_(merges), options_(std::move(options)), whole_(ids) {
    for (size_t byte = 0; byte < bytes_.size(); ++byte)
      bytes_[byte] = vocab_.find(std::string(1, static_cast<char>(byte)));
    plain_ = options_.prefix.empty() && options_.suffix.empty();
  }

  void encode(std::string_view piece, std::vector<int32_t>& out) const override {
    const int32_t id = vocab_.find(piece);
    std::atomic<uint8_t>* const whole = id >= 0 ? &whole_[static_cast<size_t>(id)] : nullptr;
    if (whole != nullptr &&
        (options_.whole_words || whole->load(std::memory_order_relaxed) == kIsWhole)) {
      out.push_back(id);
      return;
    }
    thread_local Symbols symbols;
    symbols.ids.clear();
    read(piece, symbols.ids);
    merge(symbols);
    if (whole != nullptr) {
      const bool is = symbols.ids.size() == 1 && symbols.ids[0] == id;
      whole->store(is ? kIsWhole : kIsNot, std::memory_order_relaxed);
    }
    out.insert(out.end(), symbols.ids.begin(), symbols.ids.end());
  }

  bool unbounded() const override {
    return options_.unknown.bytes.empty() && (options_.unknown.token < 0 || options_.unknown.fuse);
  }

 private:
  static constexpr uint8_t kIsWhole = 1, kIsNot = 2;

  int32_t id_of(std::string_view character, bool first, bool last) const {
    if (plain_)
      return character.size() == 1 ? bytes_[static_cast<unsigned char>(character[0])]
                                   : vocab_.find(character);
    std::string text(first ? "" : options_.prefix);
    text += character;
    if (last) text += options_.suffix;
    return vocab_.find(text);
  }

  void read(std::string_view piece, std::vector<int32_t>& ids) const {
    bool unknown_before = false;
    for (size_t at = 0; at < piece.size();) {
      const bool one = options_.raw_bytes || static_cast<unsigned char>(piece[at]) < 0x80;
      const size_t size = one ? 1 : first_character(piece.substr(at)).size;
      const std::string_view character = piece.substr(at, size);
      const int32_t id = id_of(character, at == 0, at + size == piece.size());
      at += size;
      if (id >= 0) {
        ids.push_back(id);
        unknown_before = false;
      } else if (options_.unknown.as_bytes(character, ids)) {
        unknown_before = false;
      } else if (options_.unknown.token >= 0) {
        if (!options_.unknown.fuse || !unknown_before) ids.push_back(options_.unknown.token);
        unknown_before = true;
      }
    }
  }

  void merge(Symbols& s) const {
    if (s.ids.size() < 2) return;
    s.joins.resize(s.ids.size());
    for (size_t i = 0; i + 1 < s.ids.size(); ++i) s.joins[i] = pairs_.find(s.ids[i], s.ids[i + 1]);
    s.joins.back() = {};
    s.ids.size() <= kShort ? merge_short(s) : merge_long(s);
  }

  void merge_short(Symbols& s) const {
    size_t n = s.ids.size();
    for (;;) {
      size_t best = 0;
      for (size_t i = 1; i + 1 < n; ++i)
        if (s.joins[i].rank < s.joins[best].rank) best = i;
      if (n < 2 || s.joins[best].rank == kNever) break;
      s.ids[best] = s.joins[best].made;
      for (size_t i = best + 1; i + 1 < n; ++i) {
        s.ids[i] = s.ids[i + 1];
        s.joins[i] = s.joins[i + 1];
      }
      --n;
      s.joins[best] = best + 1 < n ? pairs_.find(s.ids[best], s.ids[best + 1]) : PairTable::Join{};
      if (best > 0) s.joins[best - 1] = pairs_.find(s.ids[best - 1], s.ids[best]);
    }
    s.ids.resize(n);
  }

  void merge_long(Symbols& s) const {
    const auto n = static_cast<uint32_t>(s.ids.size());
    constexpr uint32_t kNone = UINT32_MAX;
    std::vector<uint32_t> left(n), right(n);
    for (uint32_t i = 0; i < n; ++i) {
      left[i] = i == 0 ? kNone : i - 1;
      right[i] = i + 1 == n ? kNone : i + 1;
    }
    using RankAndPlace = std::pair<uint32_t, uint32_t>;  // rank, place
    std::priority_queue<RankAndPlace, std::vector<RankAndPlace>, std::greater<>> queue;
    const auto consider = [&](uint32_t i) {
      s.joins[i] = right[i] == kNone ? PairTable::Join{} : pairs_.find(s.ids[i], s.ids[right[i]]);
      if (s.joins[i].rank != kNever) queue.emplace(s.joins[i].rank, i);
    };
    for (uint32_t i = 0; i < n; ++i) consider(i);
    while (!queue.empty()) {
      const auto [rank, i] = queue.top();
      queue.pop();
      if (s.ids[i] < 0 || s.joins[i].rank != rank) continue;
      const uint32_t gone = right[i];
      s.ids[i] = s.joins[i].made;
      s.ids[gone] = -1;
      s.joins[gone] = {};
      right[i] = right[gone];
      if (right[i] != kNone) left[right[i]] = i;
      consider(i);
      if (left[i] != kNone) consider(left[i]);
    }
    std::erase(s.ids, -1);
  }

  PieceTable vocab_;
  PairTable pairs_;
  BpeOptions options_;
  std::array<int32_t, 256> bytes_{};  // ids of pieces of one byte; -1: none
  bool plain_ = true;
  // Whether the merges of a piece's text make that piece: found when it is first met.
  mutable std::vector<std::atomic<uint8_t>> whole_;
};

}  // namespace

bool Unknown::as_bytes(std::string_view text, std::vector<int32_t>& out) const {
  if (bytes.empty()) return false;
  for (const char c : text)
    if (bytes[static_cast<unsigned char>(c)] < 0) return false;
  for (const char c : text) out.push_back(bytes[static_cast<unsigned char>(c)]);
  return true;
}

std::unique_ptr<TokenModel> make_bpe(PieceTable vocab, size_t ids, std::vector<Merge> merges,
                                     BpeOptions options) {
  return std::make_unique<Bpe>(std::move(vocab), ids, merges, std::move(options));
}

}  // namespace mc::model
