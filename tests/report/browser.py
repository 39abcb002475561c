"""A report opened in headless Chromium without a network: what the page drew, and what it complained about."""

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

# Before everything else on the page: keeps errors, whatever else happens to them.
WATCH = """<script>
window.complaints = [];
addEventListener("error", event => complaints.push(String(event.message)));
addEventListener("unhandledrejection", event => complaints.push(String(event.reason)));
for (const level of ["error", "warn"]) console[level] = (...words) => complaints.push(words.join(" "));
</script>"""

# After everything else: how many values each trace of each plot shows, and whether any mark was drawn.
PROBE = """<script>
const finite = row => Array.from(row || []).flat().filter(v => v !== null && v !== "" && !Number.isNaN(v)).length;
const count = trace => trace.z ? trace.z.map(finite).reduce((a, b) => a + b, 0) : Math.min(finite(trace.x), finite(trace.y));
const drawn = {};
for (const div of document.querySelectorAll(".figure")) {
  drawn[div.id] = {
    values: (div._fullData || []).filter(trace => trace.visible === true).map(count),
    marks: div.querySelectorAll(".scatterlayer path, .barlayer path, .heatmaplayer image").length,
    titles: [...div.querySelectorAll(".xtitle, .ytitle, .cbaxis .title, .cbtitle text")].map(e => e.textContent),
  };
}
const said = document.createElement("pre");
said.id = "probe";
said.textContent = JSON.stringify({drawn, complaints, text: document.body.innerText});
document.body.append(said);
</script>"""


def open_page(page):
    """{"drawn": {plot: {values, marks, titles}}, "complaints": [...], "text": what a reader sees}."""
    chromium = shutil.which("chromium")
    assert chromium, "chromium is not installed (tools/packages.txt)"
    text = Path(page).read_text()
    assert "<head>" in text and text.rstrip().endswith("</body>\n</html>")
    with tempfile.TemporaryDirectory() as folder:
        watched = Path(folder) / "page.html"
        watched.write_text(text.replace("<head>", "<head>" + WATCH, 1).replace("</body>\n</html>", PROBE + "</body>\n</html>"))
        ran = subprocess.run(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
             "--proxy-server=127.0.0.1:9", "--window-size=1280,4000", "--virtual-time-budget=20000",
             "--enable-logging=stderr", "--dump-dom", watched.as_uri()],
            capture_output=True, text=True, timeout=180)
    found = re.search(r'<pre id="probe">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert found, ran.stderr[-2000:]
    result = json.loads(html.unescape(found.group(1)))
    result["complaints"] += [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    return result
