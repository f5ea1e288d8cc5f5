#include "serve/frontend/text_pool.h"

#include <chrono>
#include <utility>

#include "base/mutex.h"

namespace mc::serve {

struct TextPool::Shared {
  Shared(io::Loop& l, FairQueueLimits limits) : loop(l), queue(limits) {}

  io::Loop& loop;
  TextPool* pool = nullptr;  // the loop's thread; nullptr: it is gone
  Mutex mutex;
  Condition changed;
  FairQueue queue MC_GUARDED_BY(mutex);
  std::unordered_map<Id, std::function<void()>*> works MC_GUARDED_BY(mutex);  // that wait
  std::vector<Id> done MC_GUARDED_BY(mutex);
  bool stopping MC_GUARDED_BY(mutex) = false;

  static void run(const std::shared_ptr<Shared>& s, bool large_too);
  static void post(const std::shared_ptr<Shared>& s);
};

void TextPool::Shared::run(const std::shared_ptr<Shared>& s, bool large_too) {
  while (true) {
    Id id = 0;
    std::function<void()>* work = nullptr;
    {
      Lock lock(s->mutex);
      auto item = s->queue.pop(large_too);
      while (!item && !s->stopping) {
        s->changed.wait(s->mutex);
        item = s->queue.pop(large_too);
      }
      if (s->stopping) return;
      id = item->id;
      work = s->works.extract(id).mapped();
    }
    (*work)();  // its job lives until finished()
    {
      Lock lock(s->mutex);
      s->done.push_back(id);
    }
    post(s);
  }
}

// An overloaded loop refuses posts. What is done must not be lost, so this waits.
void TextPool::Shared::post(const std::shared_ptr<Shared>& s) {
  while (!s->loop.post([s] {
    if (s->pool != nullptr) s->pool->finished();
  })) {
    Lock lock(s->mutex);
    if (s->stopping) return;
    s->changed.wait_for(s->mutex, std::chrono::milliseconds(1));
  }
}

TextPool::TextPool(io::Loop& loop, FairQueueLimits limits, size_t threads)
    : shared_(std::make_shared<Shared>(loop, limits)) {
  shared_->pool = this;
  for (size_t i = 0; i < threads; ++i)
    threads_.emplace_back([s = shared_, i] { Shared::run(s, i == 0); });
}

TextPool::~TextPool() {
  shared_->pool = nullptr;
  {
    Lock lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->changed.notify_all();
  for (std::thread& t : threads_) t.join();
}

Result<TextPool::Id> TextPool::submit(size_t tenant, size_t bytes, std::function<void()> work,
                                      std::function<void()> done) {
  const Id id = next_id_++;
  auto job = std::make_unique<Job>(Job{std::move(work), std::move(done), false});
  {
    Lock lock(shared_->mutex);
    switch (shared_->queue.push(tenant, id, bytes)) {
      case FairQueue::Verdict::kOwnerFull:
        return fail(Code::kBusy, "too many long texts of this client wait to be tokenized: retry");
      case FairQueue::Verdict::kFull:
        return fail(Code::kNoSpace, "too many long texts wait to be tokenized: retry");
      case FairQueue::Verdict::kTaken: break;
    }
    shared_->works[id] = &job->work;
  }
  jobs_[id] = std::move(job);
  shared_->changed.notify_all();
  return id;
}

void TextPool::cancel(Id id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  bool waited = false;
  {
    Lock lock(shared_->mutex);
    waited = shared_->queue.erase(id);
    shared_->works.erase(id);
  }
  if (waited)
    jobs_.erase(it);
  else
    it->second->cancelled = true;  // it runs: what it uses lives until it has
}

void TextPool::finished() {
  std::vector<Id> done;
  {
    Lock lock(shared_->mutex);
    done.swap(shared_->done);
  }
  for (const Id id : done) {
    const auto node = jobs_.extract(id);
    if (!node.empty() && !node.mapped()->cancelled) node.mapped()->done();
  }
}

size_t TextPool::waiting() const {
  Lock lock(shared_->mutex);
  return shared_->queue.size();
}

}  // namespace mc::serve
