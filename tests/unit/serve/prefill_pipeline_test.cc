// The head of a pipeline, without a worker: what its stages get, and what their answers do.
#include "serve/prefill/prefill_pipeline.h"

#include "base/json.h"
#include "prefill_site.h"
#include "serve/protocol/pipeline_messages.h"

namespace mc::serve {
namespace prefill_pipeline_test {
namespace {

// A stage that answers when the test says so.
struct SlowStage {
  explicit SlowStage(io::Loop& loop) {
    server = *rpc::Server::open(loop, "127.0.0.1:0", metrics);
    server->on<PipelineOpen>([this](const PipelineOpen& m, const rpc::Call&) {
      head = m.release;
      return Result<PipelineOpened>(PipelineOpened{1, release});
    });
    server->on<PipelinePing>(
        [](const PipelinePing&, const rpc::Call&) -> Result<rpc::Empty> { return rpc::Empty{}; });
    server->on<PipelineFetch>([](const PipelineFetch& m, const rpc::Call&) {
      return Result<PipelineFetched>(PipelineFetched{static_cast<uint32_t>(m.blocks.size() - 1)});
    });
    server->on<PipelineEnd>([this](const PipelineEnd& m, const rpc::Call&) -> Result<rpc::Empty> {
      ended.push_back(m.request);
      return rpc::Empty{};
    });
    server->on_later<PipelineBegin>(
        [this](const PipelineBegin& m, const rpc::Call&, const rpc::Reply<PipelineDone>& reply) {
          begun = m;
          begins.push_back(reply);
        });
    server->on_later<PipelineChunk>(
        [this](const PipelineChunk&, const rpc::Call&, const rpc::Reply<PipelineDone>& reply) {
          chunks.push_back(reply);
        });
    server->on_later<PipelinePut>(
        [this](const PipelinePut& m, const rpc::Call&, const rpc::Reply<rpc::Empty>& reply) {
          classes.push_back(m.cls);
          puts.push_back(reply);
        });
  }
  Metrics metrics;
  wire::Release release, head;
  PipelineBegin begun;
  std::vector<rpc::Reply<PipelineDone>> begins, chunks;
  std::vector<rpc::Reply<rpc::Empty>> puts;
  std::vector<std::string> ended, classes;
  std::unique_ptr<rpc::Server> server;
};

struct Head {
  explicit Head(io::Loop& loop, const wire::Release& release = {})
      : stage(loop),
        engine(*cost::slice_of(cost::tiny(), 0, 2), kBlock),
        site(loop, config_for(*stage.server), &engine) {
    stage.release = release;
    auto opened = PipelineHead::open(*site.shared, site.metrics);
    REQUIRE(opened);
    head = std::move(*opened);
    REQUIRE(site.until([&] { return head->ready() || trouble() != ""; }));
  }
  static PrefillConfig config_for(const rpc::Server& stage) {
    PrefillConfig c;
    c.epoch = 7;
    c.blocks = 64;
    c.stages = {stage.address()};
    c.pipeline_patience = 500ms * kSlow;
    return c;
  }
  PrefillJobPtr job(const std::string& id, size_t tokens) {
    PrefillJobPtr made = site.job(id, prompt_of(tokens, 1));
    site.shared->place_blocks(*made);
    return made;
  }
  std::string trouble() const { return head->state()["trouble"]; }
  void chunk(const PrefillJobPtr& job, uint64_t begin) {
    job->chunk = {job->kv.request, begin, begin + kBlock, begin == 0, false, {}};
    job->activations = std::make_shared<Activations>();
    job->activations->rows.resize(size_t{kBlock} * cost::tiny().hidden);
    head->send_chunk(job, [this](const PrefillChunk& c) { through.push_back(c.begin); });
  }
  SlowStage stage;
  DummyEngine engine;
  PrefillSite site;
  std::vector<uint64_t> through;  // where chunks begin
  std::unique_ptr<PipelineHead> head;
};

TEST_CASE("a stage of a release without a common protocol does not join its head (F124)") {
  SteadyClock clock;
  io::Loop loop(clock);
  Head h(loop, {"9.9.9", wire::kProtocolMax + 1, wire::kProtocolMax + 1});
  CHECK_FALSE(h.head->ready());
  CHECK(h.stage.head.build == wire::this_release().build);
  CHECK(h.trouble().find("the next stage is mc 9.9.9 (protocol ") != std::string::npos);
  CHECK(h.trouble().find("the head is mc ") != std::string::npos);
  h.stage.release = wire::this_release();
  CHECK(h.site.until([&] { return h.head->ready(); }));
}

TEST_CASE("the head gives its stages a bounded number of chunks, and ends with the last answer") {
  SteadyClock clock;
  io::Loop loop(clock);
  Head h(loop);
  const PrefillJobPtr job = h.job("a", 4 * kBlock);
  bool sent = false;
  h.head->begin(job, 1, [&] { sent = true; });
  CHECK(job->pipeline == PipelinePart::kBegun);
  for (const uint64_t begin : {0u, 1u, 2u}) {
    CHECK(h.head->takes_chunk());
    h.chunk(job, begin * kBlock);
  }
  CHECK_FALSE(h.head->takes_chunk());
  CHECK(h.head->state()["chunks"] == 3);
  CHECK(job->busy == 4);
  REQUIRE(h.site.until([&] { return h.stage.chunks.size() == 3; }));
  CHECK(h.stage.begun.blocks.size() == 4);
  CHECK(h.stage.begun.reused == 1);
  int resumed = 0;
  h.site.on_resume = [&] { ++resumed; };
  h.stage.chunks[0](PipelineDone{10, 0, 0, "", {{1, {0, 1}}}});
  REQUIRE(h.site.until([&] { return h.through == std::vector<uint64_t>{0}; }));
  CHECK(resumed == 1);
  CHECK(h.head->takes_chunk());
  h.stage.chunks[1](PipelineDone{});
  h.stage.chunks[2](PipelineDone{20, 0, 0, "", {{1, {2}}}});
  CHECK_FALSE(sent);
  h.stage.begins[0](PipelineDone{5, 0, 0, "", {}});
  REQUIRE(h.site.until([&] { return sent; }));
  CHECK(h.through.size() == 3);
  CHECK(job->busy == 0);
  CHECK(job->done.kv_bytes == 35);
  CHECK(job->pooled[1] == std::vector<uint32_t>{0, 1, 2});
}

TEST_CASE("blocks that the head puts are pinned until its stages have put theirs") {
  SteadyClock clock;
  io::Loop loop(clock);
  Head h(loop);
  const PrefillJobPtr job = h.job("a", 4 * kBlock);
  size_t there = 9;
  h.head->fetch(job, 1, 3, [&](size_t n) { there = n; });
  REQUIRE(h.site.until([&] { return there != 9; }));
  CHECK(there == 2);  // as many as the stages have
  job->context_blocks = 1;
  h.head->put(*job, 0, 4);
  REQUIRE(h.site.until([&] { return h.stage.puts.size() == 2; }));
  CHECK(h.stage.classes == std::vector<std::string>{"context", "normal"});
  h.site.fail_job(job, {Code::kUnavailable, "enough"});
  CHECK(h.site.shared->blocks().counts().used == 4);
  h.stage.puts[0](rpc::Empty{});
  REQUIRE(h.site.until([&] { return h.site.shared->blocks().counts().used == 3; }));
  h.stage.puts[1].error({Code::kNoSpace, "full"});
  REQUIRE(h.site.until([&] { return h.site.shared->blocks().counts().used == 0; }));
}

TEST_CASE("an error of a stage fails its request, and a stage that is gone fails all") {
  SteadyClock clock;
  io::Loop loop(clock);
  Head h(loop);
  const PrefillJobPtr a = h.job("a", 2 * kBlock), b = h.job("b", kBlock), c = h.job("c", kBlock);
  for (const PrefillJobPtr& job : {a, b}) h.head->begin(job, 0, [] { FAIL("it is not sent"); });
  h.chunk(a, 0);
  REQUIRE(h.site.until([&] { return h.stage.begins.size() == 2 && h.stage.chunks.size() == 1; }));
  h.stage.begins[0](PipelineDone{0, 0, static_cast<uint8_t>(Code::kTimeout), "not sent", {}});
  REQUIRE(h.site.until([&] { return a->failure.has_value(); }));
  CHECK(a->failure->code == Code::kTimeout);
  CHECK(h.site.ended.empty());  // its chunk is in a stage
  h.head->end(*a);
  REQUIRE(h.site.until([&] { return h.stage.ended == std::vector<std::string>{"a"}; }));
  h.stage.server.reset();
  REQUIRE(h.site.until([&] { return h.site.ended.size() == 3; }));
  CHECK(a->failure->code == Code::kTimeout);  // the first cause
  for (const PrefillJobPtr& job : {b, c}) {
    CHECK(job->failure->what.find("a stage of the pipeline is gone") == 0);
    CHECK(job->pipeline == PipelinePart::kLost);
  }
  CHECK(h.through.empty());
  CHECK_FALSE(h.head->ready());
  CHECK_FALSE(h.head->takes_chunk());
  h.site.shared->blocks().check();
}

}  // namespace
}  // namespace prefill_pipeline_test
}  // namespace mc::serve
