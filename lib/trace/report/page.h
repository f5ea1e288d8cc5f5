// The report of a replay as one HTML page with charts: nothing is loaded from elsewhere, and no
// script runs. It is dark where the reader's system is.
//
// Thread: values; any thread. Pure.
#pragma once
#include <string>
#include <vector>

#include "trace/report/chart.h"
#include "trace/report/report.h"

namespace mc::trace {

// Over time: TTFT, its parts, TBT, tokens from caches, requests that wait and that are answered,
// rates and outcomes; and how TTFT and TBT are distributed. Those that nothing was measured for are
// left out.
std::vector<Chart> report_charts(const std::vector<RequestResult>& results, const RunInfo& info);

// `more`: text below the report, as sim has it.
std::string report_html(const Summary& summary, const RunInfo& info,
                        const std::vector<RequestResult>& results, const std::string& more = {});

}  // namespace mc::trace
