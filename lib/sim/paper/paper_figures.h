// Declares the paper's figures and their common helpers, for paper*.cc.
//
// Thread: values; any thread. Pure: no clock, no I/O.
#pragma once
#include "sim/paper/paper.h"
#include "sim/study/study.h"

namespace mc::sim {

struct Workload {
  const char* name;
  const trace::Trace& trace;
};
std::vector<Workload> workloads(const PaperInput& in);

StudyOptions cluster(uint64_t prefill, uint64_t decode);
StudyOptions promising(StudyOptions o, Duration ttft, Duration tbt);
StudyOptions baseline(const char* engine, uint64_t cache_tokens);
Result<Run> simulated(const PaperInput& in, const trace::Trace& t, StudyOptions o);

// GPU seconds without loading a cached prefix: Figures 15 and 17 count these.
double gpu_seconds(uint64_t tokens, uint64_t reused);
double mean_gpu_seconds(const Run& run);
double hit_percent(const Run& run);
double within_percent(const Run& run, double ms);  // of those that have a TBT
// Our value of a row; whether the values of these rows rise in this order.
std::optional<double> value_at(const PaperFigure& f, const std::string& what);
bool rising(const PaperFigure& f, const std::vector<std::string>& rows);

Result<PaperFigure> equation2(const PaperInput& in);
Result<PaperFigure> table3(const PaperInput& in);
Result<PaperFigure> figure1(const PaperInput& in);
Result<PaperFigure> figure5(const PaperInput& in);
Result<PaperFigure> figure6(const PaperInput& in);
Result<PaperFigure> figure8(const PaperInput& in);
Result<PaperFigure> figure13(const PaperInput& in);
Result<PaperFigure> figure14(const PaperInput& in);
Result<PaperFigure> figure15(const PaperInput& in);
Result<PaperFigure> figure16(const PaperInput& in);
Result<PaperFigure> figure17(const PaperInput& in);
Result<PaperFigure> figure18(const PaperInput& in);
Result<PaperFigure> figure19(const PaperInput& in);
Result<PaperFigure> figure20(const PaperInput& in);
Result<PaperFigure> figure21(const PaperInput& in);
Result<PaperFigure> figure22(const PaperInput& in);
Result<PaperFigure> figure23(const PaperInput& in);
Result<PaperFigure> table4(const PaperInput& in);
Result<PaperFigure> table5(const PaperInput& in);
Result<PaperFigure> figure24(const PaperInput& in);
Result<PaperFigure> figure25(const PaperInput& in);

}  // namespace mc::sim
