// Draws columns of a table as a chart, wherever a figure asks for it. The table stays beside it.
(() => {
  "use strict";
  const HEIGHT = 220;
  const drawn = new Map();

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /** The first column and those that the figure names, from the table that it names. */
  const readTable = (figure) => {
    const table = document.querySelector(`#${figure.dataset.source} table`);
    const places = [0, ...figure.dataset.columns.split(" ").map(Number)];
    const rows = [...table.tBodies[0].rows];
    return {
      names: places.map((place) => table.tHead.rows[0].cells[place].textContent),
      columns: places.map((place) => rows.map((row) => {
        const text = row.cells[place].textContent.trim();
        return text === "" ? null : Number(text);
      })),
    };
  };

  const compact = new Intl.NumberFormat(undefined, { notation: "compact", maximumSignificantDigits: 3 });

  const draw = (figure) => {
    drawn.get(figure)?.destroy();
    const { names, columns } = readTable(figure);
    const isBars = figure.dataset.chart === "bars";
    figure.hidden = false;
    const strokes = [colour("--accent"), colour("--second")];
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const series = names.slice(1).map((label, place) => ({
      label, stroke: strokes[place], width: 2, spanGaps: true, points: { show: columns[0].length < 40 },
      value: (_, value) => (value === null ? "–" : value.toLocaleString()),
      ...(isBars && { fill: strokes[place], paths: uPlot.paths.bars({ size: [0.7, 60] }), points: { show: false } }),
    }));
    const options = {
      width: figure.clientWidth, height: HEIGHT, series: [{ label: names[0] }, ...series],
      scales: { x: { time: false, range: (_, low, high) => [low - 0.5, high + 0.5] }, y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.08 : 1] } },
      axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000] },
             { ...axis, size: 62, values: (_, values) => values.map((value) => compact.format(value)) }],
      cursor: { y: false },
    };
    const canvas = figure.querySelector(".canvas") ?? figure.appendChild(document.createElement("div"));
    canvas.className = "canvas";
    canvas.setAttribute("aria-hidden", "true");
    drawn.set(figure, new uPlot(options, columns, canvas));
  };

  const drawAll = () => document.querySelectorAll("figure[data-chart]").forEach(draw);

  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) drawn.get(target)?.setSize({ width: target.clientWidth, height: HEIGHT });
  });
  drawAll();
  for (const figure of drawn.keys()) resized.observe(figure);
  document.addEventListener("theme", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
