// Draws the figures of the page, in the colours of its style sheet, again when the reader changes light for dark.
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);

function colours() {
  const style = getComputedStyle(document.documentElement);
  return name => style.getPropertyValue(name).trim();
}

function themed(layout) {
  const colour = colours();
  const axis = {gridcolor: colour("--line"), linecolor: colour("--line"), tickcolor: colour("--line")};
  const out = Object.assign({}, layout, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
    font: {color: colour("--ink"), size: 12.5, family: getComputedStyle(document.body).fontFamily},
    hoverlabel: {bgcolor: colour("--card"), bordercolor: colour("--line"), font: {color: colour("--ink")}},
  });
  for (const key of Object.keys(layout)) {
    if (!/^[xy]axis\d*$/.test(key)) continue;
    const title = Object.assign({}, layout[key].title, {font: {size: 12.5, color: colour("--soft")}});
    out[key] = Object.assign({}, layout[key], axis, {title});
  }
  return out;
}

// Dragging zooms and a double click goes back: the bar of buttons would only cover the legend.
const config = {responsive: true, displayModeBar: false};

function draw() {
  for (const [name, figure] of Object.entries(figures)) {
    Plotly.react(name, figure.data, themed(figure.layout), config);
  }
}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

for (const select of document.querySelectorAll("select[data-figure]")) {
  const data = figures[select.dataset.figure].data;
  select.addEventListener("change", () => {
    data.forEach((trace, i) => { trace.visible = i === Number(select.value); });
    draw();
  });
}
