// Classes, maps, strings and JSON, and functions that are made at run time.
class Point {
  constructor(x, y) { this.x = x; this.y = y; }
  get length() { return this.x * this.x + this.y * this.y; }
}
class Named extends Point {
  constructor(x, y) { super(x, y); this.name = "p" + (x % 97); }
  get length() { return super.length + this.name.length; }
}
const byName = new Map();
let sum = 0;
for (let i = 0; i < 200000; i++) {
  const point = i % 3 ? new Point(i, i >> 1) : new Named(i, i & 7);
  sum = (sum + point.length) % 1000003;
  if (point instanceof Named) byName.set(point.name, (byName.get(point.name) || 0) + 1);
}
for (let i = 0; i < 200; i++) {
  const f = new Function("x", `let s = x; for (let i = 0; i < 100; i++) s = (s * ${i + 3} + i) % 1000003; return s`);
  for (let k = 0; k < 20; k++) sum = (sum + f(k)) % 1000003;
}
const text = JSON.stringify([...byName].sort());
console.log(sum, JSON.parse(text).length, text.length);
