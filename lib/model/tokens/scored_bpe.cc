// Byte-pair encoding by scores, over the text itself: a symbol need not be a piece to be joined.
#include <queue>

#include "model/tokens/token_model.h"
#include "model/tokens/unicode.h"

namespace mc::model {
namespace {

// A run of the text's bytes; joined ones leave their right half empty.
struct Run {
  size_t at = 0, size = 0;
  ptrdiff_t left = -1, right = -1;
};

struct ScoredJoin {
  double score;
  ptrdiff_t left, right;
  size_t size;  // of the joined run: another size later means that a part is gone
  bool operator<(const ScoredJoin& o) const {
    return score != o.score ? score < o.score : left > o.left;
  }
};

class ScoredBpe final : public TokenModel {
 public:
  ScoredBpe(ScoredPieces pieces, Unknown unknown)
      : pieces_(std::move(pieces)), unknown_(std::move(unknown)) {}

  void encode(std::string_view text, std::vector<int32_t>& out) const override {
    std::vector<Run> runs;
    for (size_t at = 0; at < text.size();) {
      const size_t size = first_character(text.substr(at)).size;
      const auto i = static_cast<ptrdiff_t>(runs.size());
      runs.push_back({at, size, i - 1, i + 1});
      at += size;
    }
    runs.back().right = -1;
    join(text, runs);
    const size_t begin = out.size();
    for (ptrdiff_t i = 0; i >= 0; i = runs[static_cast<size_t>(i)].right) {
      const Run& run = runs[static_cast<size_t>(i)];
      emit(text.substr(run.at, run.size), begin, out);
    }
  }

  bool unbounded() const override { return unknown_.bytes.empty(); }

 private:
  void join(std::string_view text, std::vector<Run>& runs) const {
    std::priority_queue<ScoredJoin> queue;
    const auto at = [&](ptrdiff_t i) -> Run& { return runs[static_cast<size_t>(i)]; };
    const auto consider = [&](ptrdiff_t left, ptrdiff_t right) {
      if (left < 0 || right < 0) return;
      const size_t size = at(left).size + at(right).size;
      const int32_t id = pieces_.vocab.find(text.substr(at(left).at, size));
      if (id >= 0) queue.push({pieces_.scores[static_cast<size_t>(id)], left, right, size});
    };
    for (ptrdiff_t i = 1; i < static_cast<ptrdiff_t>(runs.size()); ++i) consider(i - 1, i);
    while (!queue.empty()) {
      const ScoredJoin best = queue.top();
      queue.pop();
      Run &a = at(best.left), &b = at(best.right);
      if (a.size == 0 || b.size == 0 || a.right != best.right || a.size + b.size != best.size)
        continue;
      a.size += b.size;
      b.size = 0;
      a.right = b.right;
      if (a.right >= 0) at(a.right).left = best.left;
      consider(a.left, best.left);
      consider(best.left, a.right);
    }
  }

  void emit(std::string_view run, size_t begin, std::vector<int32_t>& out) const {
    if (const int32_t id = pieces_.vocab.find(run); id >= 0) {
      out.push_back(id);
    } else if (!unknown_.as_bytes(run, out) && unknown_.token >= 0) {
      const bool again = out.size() > begin && out.back() == unknown_.token;
      if (!unknown_.fuse || !again) out.push_back(unknown_.token);
    }
  }

  ScoredPieces pieces_;
  Unknown unknown_;
};

}  // namespace

std::unique_ptr<TokenModel> make_scored_bpe(ScoredPieces pieces, Unknown unknown) {
  return std::make_unique<ScoredBpe>(std::move(pieces), std::move(unknown));
}

}  // namespace mc::model
