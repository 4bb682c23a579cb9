// Opens pages in a headless Chromium and looks at them at three widths, light and
// dark: what overflows, what can't be read, whether tables sort, what the page
// asks of the network. Speaks the devtools protocol through a pipe.
//
//   node look.js CHROMIUM [--shots FOLDER] PAGE.html...
//
// Prints a line of JSON for each page: { page, tables, rows, requests, errors,
// faults: [...] }; a fault is a sentence. Exit code 1 if the browser fails.
'use strict';

const { spawn } = require('child_process');
const fs = require('fs');
const os = require('os');
const path = require('path');

const [program, ...rest] = process.argv.slice(2);
const shots = rest[0] === '--shots' ? rest.splice(0, 2)[1] : null;
const home = fs.mkdtempSync(path.join(os.tmpdir(), 'chromium-'));
const browser = spawn(program, ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-extensions',
  '--no-first-run', '--no-zygote', '--disable-background-networking', '--disable-component-update', '--remote-debugging-pipe',
  `--user-data-dir=${home}`, 'about:blank'], { stdio: ['ignore', 'ignore', 'pipe', 'pipe', 'pipe'], env: { ...process.env, HOME: home } });

let complaints = '';
browser.stderr.on('data', (data) => { complaints += data; });

function finish(code, text) {
  if (text) console.error(text);
  browser.removeAllListeners('exit');
  browser.once('exit', () => { fs.rmSync(home, { recursive: true, force: true }); process.exit(code); });
  browser.kill('SIGKILL');
}

browser.once('exit', () => { console.error(`the browser ended:\n${complaints.slice(-2000)}`); process.exit(1); });
browser.once('error', (error) => { console.error(String(error)); process.exit(1); });
setTimeout(() => finish(1, `no end in time\n${complaints.slice(-2000)}`), 240000).unref();

// ---- the protocol: JSON texts that end with a NUL

const waiting = new Map();
const listeners = new Set();
let number = 0;
let unread = '';

browser.stdio[4].setEncoding('utf8');
browser.stdio[4].on('data', (data) => {
  const texts = (unread + data).split('\0');
  unread = texts.pop();
  for (const text of texts) {
    const message = JSON.parse(text);
    if (message.id && waiting.has(message.id)) {
      const { resolve, reject } = waiting.get(message.id);
      waiting.delete(message.id);
      if (message.error) reject(new Error(JSON.stringify(message.error)));
      else resolve(message.result);
    } else listeners.forEach((listener) => listener(message));
  }
});

function call(method, params = {}, sessionId = undefined) {
  const id = ++number;
  browser.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
  return new Promise((resolve, reject) => waiting.set(id, { resolve, reject }));
}

function event(method) {
  return new Promise((resolve) => {
    const listener = (message) => {
      if (message.method !== method) return;
      listeners.delete(listener);
      resolve(message.params);
    };
    listeners.add(listener);
  });
}

// ---- what is looked at; these run in the page

function look() {
  const faults = [];
  const root = document.documentElement;
  const name = (element) => `${element.tagName.toLowerCase()}${element.id ? `#${element.id}` : ''}.${element.className && element.className.baseVal === undefined ? element.className : ''} "${element.textContent.slice(0, 40)}"`;
  if (root.scrollWidth > root.clientWidth) faults.push(`the page is ${root.scrollWidth} wide, and there are ${root.clientWidth}`);
  for (const element of document.body.querySelectorAll('*')) {
    const box = element.getBoundingClientRect();
    if (box.width && box.right > root.clientWidth + 1) faults.push(`beyond the edge: ${name(element)}`);
    const style = getComputedStyle(element);
    if (style.display !== 'inline' && style.overflowX === 'visible' && element.clientWidth && element.scrollWidth > element.clientWidth + 1)
      faults.push(`overflows, ${element.scrollWidth} of ${element.clientWidth}: ${name(element)}`);
  }

  // WCAG's contrast, of each text with what is behind it
  const channels = (text) => {
    const parts = text.match(/[\d.]+/g).map(Number);
    if (text.startsWith('color(')) return [...parts.slice(0, 3).map((v) => v * 255), parts.length > 3 ? parts[3] : 1];
    return [parts[0], parts[1], parts[2], parts.length > 3 ? parts[3] : 1];
  };
  const over = (front, back) => [0, 1, 2].map((i) => front[i] * front[3] + back[i] * (1 - front[3])).concat(1);
  const luminance = (colour) => {
    const [r, g, b] = colour.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.unshift(channels(getComputedStyle(e).backgroundColor));
    return layers.reduce((back, front) => over(front, back), [255, 255, 255, 1]);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  let worst = 21;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest('script, style, svg') || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const [a, b] = [luminance(over(channels(style.color), back)), luminance(back)].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    texts++;
    worst = Math.min(worst, contrast);
    if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(2)}: ${name(element)}`);
    if (parseFloat(style.fontSize) < 12) faults.push(`${style.fontSize}: ${name(element)}`);
  }
  if (!texts) faults.push('there is no text');
  return { faults: [...new Set(faults)].slice(0, 20), worst, dark: luminance(behind(document.body)) < 0.2 };
}

function sort() {
  const faults = [];
  let sorted = 0;
  document.querySelectorAll('table').forEach((table) => {
    const rows = () => Array.from(table.tBodies[0].rows);
    const count = rows().length;
    table.querySelectorAll('th').forEach((head, i) => {
      const keys = () => rows().map((row) => (row.cells[i].hasAttribute('data-s') ? Number(row.cells[i].dataset.s) : row.cells[i].textContent));
      const ordered = (list, sign) => list.every((key, j) => j === 0 || sign * (typeof key === 'number' ? key - list[j - 1] : key.localeCompare(list[j - 1], undefined, { numeric: true })) >= 0);
      const where = `${table.closest('section').id}, column ${head.textContent}`;
      ['first', 'second'].forEach((click) => {
        head.querySelector('button').click();
        const order = head.getAttribute('aria-sort');
        if (!['ascending', 'descending'].includes(order)) faults.push(`${where}: the ${click} click sorts nothing`);
        else if (keys().some((key) => Number.isNaN(key)) || !ordered(keys(), order === 'ascending' ? 1 : -1)) faults.push(`${where}: not ${order}`);
        if (rows().length !== count) faults.push(`${where}: rows are lost`);
        sorted++;
      });
      if (table.querySelectorAll('[aria-sort]').length !== 1) faults.push(`${where}: sorted by several columns`);
    });
  });
  // where the chart tells a minute's figures
  const plot = document.querySelector('.plot');
  if (plot) {
    const box = plot.getBoundingClientRect();
    plot.dispatchEvent(new PointerEvent('pointermove', { clientX: box.right - 1, clientY: box.top + 5 }));
    if (!/^\d\d:\d\d: \d+ enqueued/.test(document.querySelector('.flow output').textContent)) faults.push('the chart tells no figures');
  }
  return { faults, sorted };
}

function describe() {
  const rows = {};
  document.querySelectorAll('section').forEach((section) => { rows[section.id] = section.querySelectorAll('tbody tr').length; });
  return { tables: document.querySelectorAll('table').length, rows, text: document.body.innerText, pwned: String(window.pwned),
    scripts: document.scripts.length, images: document.images.length, verdict: document.querySelector('#health').className };
}

// ---- a page

async function visit(page, sessionId) {
  const result = { page: path.basename(page), requests: [], errors: [], faults: [] };
  const record = (message) => {
    if (message.method === 'Network.requestWillBeSent') result.requests.push(message.params.request.url);
    if (message.method === 'Runtime.exceptionThrown') result.errors.push(message.params.exceptionDetails.text);
    if (message.method === 'Log.entryAdded') result.errors.push(message.params.entry.text);
  };
  const run = async (f) => {
    const { result: value, exceptionDetails } = await call('Runtime.evaluate', { expression: `(${f})()`, returnByValue: true }, sessionId);
    if (exceptionDetails) throw new Error(JSON.stringify(exceptionDetails));
    return value.value;
  };
  listeners.add(record);
  const loaded = event('Page.loadEventFired');
  await call('Page.navigate', { url: `file://${path.resolve(page)}` }, sessionId);
  await loaded;
  for (const width of [390, 768, 1280]) {
    for (const scheme of ['light', 'dark']) {
      await call('Emulation.setDeviceMetricsOverride', { width, height: 900, deviceScaleFactor: 1, mobile: width < 500 }, sessionId);
      await call('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }] }, sessionId);
      const seen = await run(look);
      result.faults.push(...seen.faults.map((fault) => `${width} px, ${scheme}: ${fault}`));
      if (seen.dark !== (scheme === 'dark')) result.faults.push(`${width} px: not ${scheme}`);
      result.worst = Math.min(result.worst || 21, seen.worst);
      if (shots) {
        const { data } = await call('Page.captureScreenshot', { captureBeyondViewport: true }, sessionId);
        fs.writeFileSync(path.join(shots, `${path.basename(page, '.html')}-${width}-${scheme}.png`), Buffer.from(data, 'base64'));
      }
    }
  }
  Object.assign(result, await run(describe));
  const { faults, sorted } = await run(sort);
  result.faults.push(...faults);
  result.sorted = sorted;
  listeners.delete(record);
  console.log(JSON.stringify(result));
}

(async () => {
  const { targetId } = await call('Target.createTarget', { url: 'about:blank' });
  const { sessionId } = await call('Target.attachToTarget', { targetId, flatten: true });
  for (const domain of ['Page', 'Runtime', 'Network', 'Log']) await call(`${domain}.enable`, {}, sessionId);
  for (const page of rest) await visit(page, sessionId);
  finish(0);
})().catch((error) => finish(1, error.stack));
