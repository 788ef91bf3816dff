#include "cli/bench/report_page.h"

#include <fmt/format.h>

#include "cli/bench/svg_plot.h"

namespace coppice::cli {
namespace {

constexpr std::string_view kStyle = R"(
:root{color-scheme:light dark;--ink:#1c2321;--faint:#5d6a66;--grid:#dde3e0;--paper:#fbfcfb;--series-0:#1b7f4d;--series-1:#c7731a;--series-2:#3566b8;--series-3:#a23b72}
@media(prefers-color-scheme:dark){:root{--ink:#e7ecea;--faint:#9aa8a3;--grid:#33403b;--paper:#151a18;--series-0:#5cc98f;--series-1:#f0a95a;--series-2:#84aef2;--series-3:#e285b6}}
body{background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:1020px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}p{color:var(--faint)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(380px,1fr));gap:1em}
svg{width:100%;height:auto}svg text{fill:var(--ink);font-family:inherit}
.title{font-size:14px;font-weight:600}.label{font-size:12px}.tick,.value{font-size:11px}svg .tick{fill:var(--faint)}
.grid{stroke:var(--grid);stroke-width:1}.axis{stroke:var(--faint);stroke-width:1}.line{fill:none;stroke-width:2}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:.25em .7em;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}th:first-child,td:first-child{text-align:left})";

}  // namespace

std::string BeginReportPage(const std::string& heading) {
  return fmt::format(
      "{2}<meta name=\"viewport\" content=\"width=device-width\"><title>{0}</title><style>{1}"
      "</style></head><body>\n<h1>{0}</h1>\n",
      EscapeHtml(heading), kStyle, kReportHtmlBegin);
}

}  // namespace coppice::cli
