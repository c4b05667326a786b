// Functions that are right at extreme values: no overflow inside, and NaN stays NaN, unlike with some exp().
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

fn sigmoid(x: f32) -> f32 {
  let e = exp(-abs(x));
  return select(select(e, 1.0, x >= 0.0) / (1.0 + e), x, is_nan(x));
}

fn tanh_of(x: f32) -> f32 {
  let e = exp(-2.0 * abs(x));
  let y = (1.0 - e) / (1.0 + e);
  // Near zero the difference above would cancel.
  let small = x * (1.0 - x * x * (1.0 / 3.0 - x * x * (2.0 / 15.0)));
  let value = select(select(-y, y, x >= 0.0), small, abs(x) < 0.05);
  return select(value, x, is_nan(x));
}

/** Four partial sums: chains a quarter as long as one. */
fn sum4(x: vec4f) -> f32 { return (x.x + x.y) + (x.z + x.w); }
