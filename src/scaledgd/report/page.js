"use strict";
// Draws every <figure class="chart"> and <figure class="map"> from the numbers inside it.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const element = (name, attributes = {}, text) => {
    const made = document.createElementNS(SVG, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const html = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const raised = (k) => String(k).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
  const shown = (v) => {
    if (v === null || v === undefined) return "–";
    const size = Math.abs(v);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return v.toExponential(2);
    return String(Number(v.toPrecision(4)));
  };
  const colour = (k) => `var(--c${k % 8})`;

  // ---- axes
  const linearTicks = (low, high, most, least = 0) => {  // least: the smallest step
    const rough = Math.max(least, (high - low) / Math.max(most, 1));
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) {
      const value = k * step;
      ticks.push([value, String(Number(value.toPrecision(6)))]);
    }
    return ticks;
  };
  const logTicks = (low, high, most) => {  // low and high are powers of ten
    const span = high - low;
    if (span < 2.2) {
      const ticks = [];
      for (let k = Math.floor(low); k <= high; k++) {
        for (const m of span < 0.7 ? [1, 2, 3, 4, 5, 6, 8] : [1, 2, 5]) {
          const at = k + Math.log10(m);
          if (at >= low - 1e-9 && at <= high + 1e-9) ticks.push([at, shown(m * 10 ** k)]);
        }
      }
      if (ticks.length > 1) return ticks;
      return linearTicks(10 ** low, 10 ** high, most).map(([v, label]) => [Math.log10(v), label]);
    }
    const step = Math.max(1, Math.ceil(span / most));
    const plain = low >= -3 && high <= 4;
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9) * step; k <= high + 1e-9; k += step) {
      ticks.push([k, plain || k === 0 ? shown(10 ** k) : `10${raised(k)}`]);
    }
    return ticks;
  };
  const DAY = 86400;
  const STEPS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY, 2 * DAY, 3 * DAY,
    7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 182 * DAY, 365 * DAY];
  const written = (seconds, how) => new Intl.DateTimeFormat("en-GB",
    { timeZone: "UTC", hourCycle: "h23", ...how }).format(new Date(1000 * seconds));
  const clock = (seconds, how = {}) => written(seconds, { hour: "2-digit", minute: "2-digit", ...how });
  const date = (seconds) => written(seconds, { day: "numeric", month: "short" });
  const moment = (seconds) => `${date(seconds)} ${clock(seconds, seconds % 60 ? { second: "2-digit" } : {})}`;
  const timeTicks = (low, high, most) => {  // seconds since 1970
    const rough = (high - low) / Math.max(most, 1);
    const step = STEPS.find((s) => s >= rough) || Math.ceil(rough / (365 * DAY)) * 365 * DAY;
    const years = step >= 91 * DAY ? (s) => written(s, { month: "short", year: "numeric" }) : date;
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) {
      const at = k * step;
      ticks.push([at, at % DAY ? clock(at, step < 60 ? { second: "2-digit" } : {}) : years(at)]);
    }
    return ticks;
  };
  const range = (values, log) => {
    let low = Infinity, high = -Infinity;
    for (const v of values) if (v !== null && Number.isFinite(v)) {
      low = Math.min(low, v); high = Math.max(high, v);
    }
    if (low > high) [low, high] = [0, 1];
    const pad = (high - low || (log ? 1 : Math.abs(high) || 1)) * 0.04;
    return [low - pad, high + pad];
  };

  // ---- curves
  const chart = (figure, data) => {
    const drawing = figure.querySelector(".drawing");
    const legend = html("div", "legend");
    const tip = html("div", "tip");
    tip.hidden = true;
    const hidden = new Set();
    let view = null;  // [x0, x1, y0, y1] in axis units when zoomed
    const fx = data.logx ? (v) => (v > 0 ? Math.log10(v) : null) : (v) => v;
    const fy = data.logy ? (v) => (v > 0 ? Math.log10(v) : null) : (v) => v;
    const curves = data.curves.map((c) => ({
      ...c,
      at: c.x.map((x, k) => [x === null ? null : fx(x), c.y[k] === null ? null : fy(c.y[k])]),
      top: c.upper ? c.upper.map((v) => (v === null ? null : fy(v))) : [],
    }));
    const levels = data.levels.map((l) => ({ ...l, at: fy(l.y) }));

    const buttons = curves.map((c, k) => {
      const button = html("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      const line = element("svg", { width: 24, height: 8, "aria-hidden": "true" });
      line.append(c.points
        ? element("circle", { cx: 12, cy: 4, r: 3.4, style: `fill:${colour(c.colour)}` })
        : element("line", { x1: 0, x2: 24, y1: 4, y2: 4,
          style: `stroke:${colour(c.colour)};stroke-width:${c.upper ? "8;opacity:.3" : "2.4"}`,
          "stroke-dasharray": c.dashed ? "5 4" : "none" }));
      button.append(line, c.name);
      button.addEventListener("click", () => {
        if (!hidden.delete(k)) hidden.add(k);
        button.setAttribute("aria-pressed", String(!hidden.has(k)));
        draw();
      });
      legend.append(button);
      return button;
    });
    const reset = html("button", "reset", "whole range");
    reset.type = "button";
    reset.hidden = true;
    reset.addEventListener("click", () => { view = null; draw(); });
    legend.append(reset);
    if (buttons.length) figure.insertBefore(legend, drawing.nextSibling);

    let plot;
    const draw = () => {
      const width = Math.max(260, drawing.clientWidth), height = Math.min(360, 0.45 * width + 90);
      const left = 66, right = 14, top = 8, bottom = 44;
      const visible = curves.filter((_, k) => !hidden.has(k));
      const points = (visible.length ? visible : curves).flatMap((c) => c.at);
      const x = range(points.map((p) => p[0]), data.logx);
      const tops = (visible.length ? visible : curves).flatMap((c) => c.top);
      const y = range(points.map((p) => p[1]).concat(tops, levels.map((l) => l.at)), data.logy);
      // curves rarely fall below a level, so its name has room there
      if (levels.length) y[0] -= 0.07 * (y[1] - y[0]);
      const [x0, x1, y0, y1] = view || [...x, ...y];
      const px = (v) => left + ((v - x0) / (x1 - x0)) * (width - left - right);
      const py = (v) => height - bottom - ((v - y0) / (y1 - y0)) * (height - top - bottom);
      plot = { left, right, top, bottom, width, height, x0, x1, y0, y1, px, py };
      const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
        "aria-label": `${data.title}: ${data.ylabel} over ${data.xlabel}` });
      const name = `clip${Math.random().toString(36).slice(2)}`;
      const clip = element("clipPath", { id: name });
      const box = { x: left, y: top, width: width - left - right, height: height - top - bottom };
      clip.append(element("rect", box));
      svg.append(clip);
      const whole = points.every((p) => Number.isInteger(p[0]));  // numbers of components, iterations
      const ticksX = (data.times ? timeTicks : data.logx ? logTicks : linearTicks)(x0, x1,
        Math.max(3, width / 90), whole ? 1 : 0);
      const ticksY = (data.logy ? logTicks : linearTicks)(y0, y1, Math.max(3, height / 45));
      for (const [v, label] of ticksX) {
        svg.append(element("line", { class: "grid", x1: px(v), x2: px(v), y1: top, y2: height - bottom }));
        svg.append(element("text", { x: px(v), y: height - bottom + 16, "text-anchor": "middle" }, label));
      }
      for (const [v, label] of ticksY) {
        svg.append(element("line", { class: "grid", x1: left, x2: width - right, y1: py(v), y2: py(v) }));
        svg.append(element("text", { x: left - 7, y: py(v) + 4, "text-anchor": "end" }, label));
      }
      svg.append(element("text", { x: (left + width - right) / 2, y: height - 8,
        "text-anchor": "middle" }, data.xlabel));
      const middle = (top + height - bottom) / 2;
      svg.append(element("text", { x: 14, y: middle, "text-anchor": "middle",
        transform: `rotate(-90 14 ${middle})` }, data.ylabel));
      const inside = element("g", { "clip-path": `url(#${name})` });
      for (const l of levels) {
        if (l.at === null) continue;
        inside.append(element("line", { class: "level", x1: left, x2: width - right,
          y1: py(l.at), y2: py(l.at) }));
        inside.append(element("text", { x: width - right - 6, y: py(l.at) + 14,
          "text-anchor": "end" }, l.name));
      }
      const band = (c) => {  // a polygon for every run without a gap; single points get some width
        const runs = [];
        let run = null;
        c.at.forEach(([a, b], k) => {
          if (a === null || b === null || c.top[k] === null) { run = null; return; }
          if (!run) runs.push(run = []);
          run.push([px(a), py(b), py(c.top[k])]);
        });
        return runs.map((r) => {
          const wide = r.length > 1 ? r : [-1.5, 1.5].map((d) => [r[0][0] + d, r[0][1], r[0][2]]);
          const at = (x, y) => `${x.toFixed(1)} ${y.toFixed(1)}`;
          const there = wide.map(([x, low]) => at(x, low));
          const back = wide.map(([x, , high]) => at(x, high)).reverse();
          return `M${[...there, ...back].join("L")}Z`;
        }).join("");
      };
      curves.forEach((c, k) => {
        if (hidden.has(k)) return;
        if (c.upper) {
          inside.append(element("path", { d: band(c), style: `fill:${colour(c.colour)};opacity:.25` }));
          return;
        }
        let path = "", open = false;
        for (const [a, b] of c.at) {
          if (a === null || b === null) { open = false; continue; }
          path += `${open ? "L" : "M"}${px(a).toFixed(1)} ${py(b).toFixed(1)}`;
          open = true;
        }
        if (!c.points) {
          inside.append(element("path", { d: path, fill: "none", "stroke-linejoin": "round",
            style: `stroke:${colour(c.colour)};stroke-width:2`,
            "stroke-dasharray": c.dashed ? "6 4" : "none" }));
        }
        if (c.points || c.at.length <= 40) {
          for (const [a, b] of c.at) {
            if (a === null || b === null) continue;
            inside.append(element("circle", { cx: px(a), cy: py(b), r: c.points ? 3.2 : 2.6,
              style: `fill:${colour(c.colour)}` }));
          }
        }
      });
      svg.append(inside, element("rect", { class: "frame", ...box }));
      drawing.replaceChildren(svg, tip);
      tip.hidden = true;
      reset.hidden = view === null;
      listen(svg);
    };

    const place = (svg, event) => {
      const box = svg.getBoundingClientRect();
      return [((event.clientX - box.left) * plot.width) / box.width,
        ((event.clientY - box.top) * plot.height) / box.height];
    };
    const listen = (svg) => {
      let from = null, chosen = null, cross = null;
      const { left, right, top, bottom, width, height, x0, x1, y0, y1 } = plot;
      const inX = (v) => Math.min(Math.max(v, left), width - right);
      const inY = (v) => Math.min(Math.max(v, top), height - bottom);
      svg.addEventListener("pointerdown", (event) => {
        from = place(svg, event);
        svg.setPointerCapture(event.pointerId);
      });
      svg.addEventListener("pointermove", (event) => {
        const [x, y] = place(svg, event);
        if (from) {
          tip.hidden = true;
          if (!chosen) svg.append(chosen = element("rect", { class: "chosen" }));
          const [a, b] = [inX(Math.min(from[0], x)), inX(Math.max(from[0], x))];
          const [c, d] = [inY(Math.min(from[1], y)), inY(Math.max(from[1], y))];
          for (const [key, v] of [["x", a], ["y", c], ["width", b - a], ["height", d - c]])
            chosen.setAttribute(key, v);
          return;
        }
        hover(svg, x, y, (line) => { if (cross) cross.remove(); if (line) svg.append(cross = line); });
      });
      svg.addEventListener("pointerup", (event) => {
        if (!from) return;
        const [x, y] = place(svg, event), start = from;
        from = null;
        if (chosen) chosen.remove();
        chosen = null;
        if (Math.abs(x - start[0]) < 8 || Math.abs(y - start[1]) < 8) return;
        const back = (v, low, high, a, b) => low + ((v - a) / (b - a)) * (high - low);
        const xs = [inX(start[0]), inX(x)].sort((p, q) => p - q);
        const ys = [inY(start[1]), inY(y)].sort((p, q) => q - p);
        view = [...xs.map((v) => back(v, x0, x1, left, width - right)),
          ...ys.map((v) => back(v, y0, y1, height - bottom, top))];
        draw();
      });
      svg.addEventListener("pointercancel", () => { from = null; if (chosen) chosen.remove(); chosen = null; });
      svg.addEventListener("pointerleave", () => { tip.hidden = true; if (cross) cross.remove(); });
      svg.addEventListener("dblclick", () => { view = null; draw(); });
    };
    const hover = (svg, x, y, mark) => {
      const { left, right, top, bottom, width, height, px, py } = plot;
      if (x < left || x > width - right || y < top || y > height - bottom) {
        tip.hidden = true;
        return mark(null);
      }
      // the x of the nearest point of any curve, then every curve's value there
      let best = null;
      curves.forEach((c, k) => {
        if (hidden.has(k)) return;
        c.at.forEach(([a, b], j) => {
          if (a === null || b === null) return;
          const far = Math.abs(px(a) - x) + 0.05 * Math.abs(py(b) - y);
          if (!best || far < best.far) best = { far, a, raw: c.x[j] };
        });
      });
      if (!best || best.far > 60) { tip.hidden = true; return mark(null); }
      const rows = [];
      curves.forEach((c, k) => {
        if (hidden.has(k)) return;
        let near = null;
        c.at.forEach(([a, b], j) => {
          if (a === null || b === null) return;
          const far = Math.abs(px(a) - px(best.a));
          if (far < 6 && (!near || far < near.far)) near = { far, j };
        });
        if (near) rows.push([c, c.y[near.j], c.upper ? c.upper[near.j] : null]);
      });
      rows.sort((p, q) => q[1] - p[1]);
      tip.replaceChildren(html("b", "", `${data.xlabel}: ${(data.times ? moment : shown)(best.raw)}`));
      for (const [c, v, top] of rows) {
        const row = html("div"), key = html("i");
        key.style.background = colour(c.colour);
        row.append(key, `${c.name}: ${shown(v)}${top === null ? "" : ` to ${shown(top)}`}`);
        tip.append(row);
      }
      tip.hidden = false;
      const scale = drawing.clientWidth / width;
      const wide = tip.offsetWidth, at = px(best.a) * scale;
      tip.style.left = `${Math.max(0, at + 14 + wide > drawing.clientWidth ? at - wide - 14 : at + 14)}px`;
      tip.style.top = `${Math.max(0, Math.min(y * scale - 12, height * scale - tip.offsetHeight))}px`;
      const line = element("line", { class: "cross", x1: px(best.a), x2: px(best.a), y1: top,
        y2: height - bottom, "pointer-events": "none" });
      mark(line);
    };
    return draw;
  };

  // ---- maps
  const VIRIDIS = ["440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58",
    "b5de2b", "fde725"];
  const BALANCE = ["2b4f8f", "5f8cc4", "a5c4e3", "e3ecf4", "f7f7f7", "f8e4d8", "ecb493", "d0744a",
    "9c3a1d"];
  const parsed = (colours) => colours.map((c) => [0, 2, 4].map((k) => parseInt(c.slice(k, k + 2), 16)));
  const SCALES = { false: parsed(VIRIDIS), true: parsed(BALANCE) };
  const mixed = (scale, share) => {
    const place = Math.min(Math.max(share, 0), 1) * (scale.length - 1);
    const k = Math.min(Math.floor(place), scale.length - 2), rest = place - k;
    return scale[k].map((v, j) => Math.round(v + rest * (scale[k + 1][j] - v)));
  };
  const cut = (label, most) => (label.length > most ? `${label.slice(0, most - 1)}…` : label);
  const map = (figure, data) => {
    const drawing = figure.querySelector(".drawing");
    if (data.values.some((row) => row.includes(null))) {
      const key = html("div", data.diverging ? "legend key empty" : "legend key"), swatch = html("i");
      key.append(swatch, data.diverging ? "no value" : "missing");
      figure.insertBefore(key, drawing.nextSibling);
    }
    const tip = html("div", "tip");
    tip.hidden = true;
    const rows = data.values.length, columns = data.values[0].length;
    const scale = SCALES[data.diverging];
    const picture = document.createElement("canvas");
    picture.width = columns;
    picture.height = rows;
    const paint = () => {
      const context = picture.getContext("2d"), pixels = context.createImageData(columns, rows);
      const probe = html("span");
      probe.style.color = data.diverging ? "var(--empty)" : "var(--missing)";
      drawing.append(probe);
      const missing = getComputedStyle(probe).color.match(/\d+/g).slice(0, 3).map(Number);
      probe.remove();
      data.values.forEach((row, i) => row.forEach((v, j) => {
        const c = v === null ? missing : mixed(scale, (v - data.low) / (data.high - data.low || 1));
        pixels.data.set([...c, 255], 4 * (i * columns + j));
      }));
      context.putImageData(pixels, 0, 0);
    };
    const draw = () => {
      paint();
      const width = Math.max(260, drawing.clientWidth);
      const names = data.aty ? 6 : Math.max(0, ...(data.y || []).map((label) => label.length));
      const left = Math.max(58, 30 + 7 * Math.min(names, 12)), right = 74, top = 6, bottom = 42;
      const wide = width - left - right;
      const high = Math.min(340, Math.max(140, (wide * rows) / columns));
      const height = high + top + bottom;
      const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
        "aria-label": data.title });
      const image = element("image", { x: left, y: top, width: wide, height: high,
        preserveAspectRatio: "none", href: picture.toDataURL(), style: "image-rendering:pixelated" });
      svg.append(image, element("rect", { class: "frame", x: left, y: top, width: wide, height: high }));
      // names are shown at every n-th row; numbers and times at round ones
      const ticks = (n, labels, places, times, length, gap) => {
        const most = Math.max(2, Math.floor(length / gap));
        if (!labels || places) {
          const at = places || [...Array(n).keys()];
          const step = n > 1 ? at[n - 1] - at[n - 2] : 1;
          const found = (times ? timeTicks : linearTicks)(at[0], at[n - 1] + step, most);
          return found.map(([v, label]) => {
            let k = 0;
            while (k + 1 < n && at[k + 1] <= v) k++;
            return [k + (v - at[k]) / ((k + 1 < n ? at[k + 1] : at[k] + step) - at[k]) - 0.5, label];
          }).filter(([k]) => k >= -0.5 && k <= n - 0.5);
        }
        const step = Math.max(1, Math.ceil(n / most));
        const found = [];
        for (let k = 0; k < n; k += step) found.push([k, cut(labels[k], 12)]);
        return found;
      };
      const longest = data.atx ? 6 : Math.max(0, ...(data.x || []).map((label) => label.length));
      const gapX = Math.max(46, 7.5 * Math.min(longest, 12));
      for (const [k, label] of ticks(columns, data.x, data.atx, data.times[0], wide, gapX)) {
        svg.append(element("text", { x: left + ((k + 0.5) * wide) / columns, y: top + high + 16,
          "text-anchor": "middle" }, label));
      }
      for (const [k, label] of ticks(rows, data.y, data.aty, data.times[1], high, 26)) {
        svg.append(element("text", { x: left - 6, y: top + ((k + 0.5) * high) / rows + 4,
          "text-anchor": "end" }, label));
      }
      svg.append(element("text", { x: left + wide / 2, y: height - 6, "text-anchor": "middle" }, data.xlabel));
      const middle = top + high / 2;
      svg.append(element("text", { x: 13, y: middle, "text-anchor": "middle",
        transform: `rotate(-90 13 ${middle})` }, data.ylabel));
      const steps = 40, x = width - right + 12;
      for (let k = 0; k < steps; k++) {
        svg.append(element("rect", { x, width: 12, y: top + (high * (steps - 1 - k)) / steps,
          height: high / steps + 0.6, fill: `rgb(${mixed(scale, k / (steps - 1)).join(",")})` }));
      }
      for (const [v, at] of [[data.high, top + 10], [data.low, top + high]]) {
        svg.append(element("text", { x: x + 16, y: at }, shown(Number(v.toPrecision(3)))));
      }
      const right90 = element("text", { x: x + 30, y: middle, "text-anchor": "middle",
        transform: `rotate(90 ${x + 30} ${middle})` }, data.unit);
      svg.append(right90);
      svg.addEventListener("pointermove", (event) => {
        const box = svg.getBoundingClientRect(), ratio = width / box.width;
        const a = (event.clientX - box.left) * ratio, b = (event.clientY - box.top) * ratio;
        const j = Math.floor(((a - left) / wide) * columns), i = Math.floor(((b - top) / high) * rows);
        if (i < 0 || j < 0 || i >= rows || j >= columns) { tip.hidden = true; return; }
        const v = data.values[i][j];
        tip.textContent = `${data.ylabel || "row"} ${data.y ? data.y[i] : i}, `
          + `${data.xlabel || "column"} ${data.x ? data.x[j] : j}: ${v === null ? "missing" : shown(v)}`;
        tip.hidden = false;
        const at = a / ratio;
        tip.style.left = `${Math.max(0, at + 14 + tip.offsetWidth > box.width ? at - tip.offsetWidth - 14 : at + 14)}px`;
        tip.style.top = `${b / ratio + 10}px`;
      });
      svg.addEventListener("pointerleave", () => { tip.hidden = true; });
      drawing.replaceChildren(svg, tip);
    };
    return draw;
  };

  const kinds = { chart, map };
  for (const figure of document.querySelectorAll("figure.chart, figure.map")) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const draw = kinds[figure.className](figure, data);
    let width = -1;
    new ResizeObserver(() => {
      const now = figure.querySelector(".drawing").clientWidth;
      if (now !== width) { width = now; draw(); }
    }).observe(figure.querySelector(".drawing"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    matchMedia("print").addEventListener("change", draw);
  }
})();
