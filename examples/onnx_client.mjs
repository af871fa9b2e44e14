// Preprocessing of photos for a file of `metrix export --onnx`, in JavaScript without packages: a browser or Node.
//
//   const about = JSON.parse(text of model.onnx.json);
//   const input = preprocess(pixels, width, height, about.preprocessing);   // pixels: RGB or RGBA bytes, as of a canvas
//   const images = new ort.Tensor("float32", input, [1, 3, about.preprocessing.size, about.preprocessing.size]);
//   const { embeddings } = await session.run({ images });                   // onnxruntime-web or onnxruntime-node
//
// Draw the image upright at its own size and let the canvas resize nothing: browsers filter in other ways.

/** The input of the network, channels first, from RGB or RGBA bytes of an upright image. */
export function preprocess(pixels, width, height, about) {
  let image = toRgb(pixels, width, height);
  let [scale, shift] = [[], []];
  for (const step of about.steps) {
    const short = Math.min(image.width, image.height);
    if (step.shrink_shorter_side_to_at_most && short > step.shrink_shorter_side_to_at_most) {
      const side = step.shrink_shorter_side_to_at_most; // both sides rounded
      const sized = (length) => Math.max(1, roundHalfToEven((length * side) / short));
      image = resize(image, sized(image.width), sized(image.height));
    } else if (step.resize_shorter_side_to) {
      const side = step.resize_shorter_side_to; // the longer side truncated
      const sized = (length) => Math.trunc((side * length) / short);
      image = resize(image, sized(image.width), sized(image.height));
    } else if (step.crop_centre_to) {
      image = cropCentre(image, step.crop_centre_to[1], step.crop_centre_to[0]);
    } else if (step.subtract) {
      shift = step.subtract;
    } else if (Array.isArray(step.divide_by)) {
      scale = step.divide_by;
    } else if (step.resize_to || step.convert_to) {
      throw new Error(`expected a model of colour photos, got the step ${JSON.stringify(step)}`);
    }
  }
  const area = image.width * image.height;
  const input = new Float32Array(3 * area);
  for (let channel = 0; channel < 3; channel++) {
    for (let n = 0; n < area; n++) {
      input[channel * area + n] = (image.data[3 * n + channel] / 255 - shift[channel]) / scale[channel];
    }
  }
  return input;
}

/** Three bytes per pixel; transparent pixels become white. */
function toRgb(pixels, width, height) {
  const channels = pixels.length / (width * height);
  const data = new Uint8Array(3 * width * height);
  for (let n = 0; n < width * height; n++) {
    const alpha = channels === 4 ? pixels[4 * n + 3] / 255 : 1;
    for (let c = 0; c < 3; c++) data[3 * n + c] = Math.round(255 * (1 - alpha) + alpha * pixels[channels * n + c]);
  }
  return { data, width, height };
}

/** Bilinear with antialiasing: a triangle as wide as the reduction, each pass rounded to 8 bits, as in Pillow. */
function resize(image, width, height) {
  return alongRows(alongColumns(image, width), height);
}

function weights(before, after) {
  const scale = before / after;
  const support = Math.max(1, scale);
  return Array.from({ length: after }, (_, n) => {
    const centre = (n + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const last = Math.min(before, Math.trunc(centre + support + 0.5));
    const raw = [];
    for (let x = first; x < last; x++) raw.push(Math.max(0, 1 - Math.abs((x - centre + 0.5) / support)));
    const sum = raw.reduce((a, b) => a + b, 0);
    return { first, share: raw.map((value) => value / sum) };
  });
}

function alongColumns({ data, width, height }, after) {
  if (width === after) return { data, width, height };
  const found = new Uint8Array(3 * after * height);
  weights(width, after).forEach(({ first, share }, x) => {
    for (let y = 0; y < height; y++) {
      for (let c = 0; c < 3; c++) {
        let sum = 0.5;
        for (let k = 0; k < share.length; k++) sum += share[k] * data[3 * (y * width + first + k) + c];
        found[3 * (y * after + x) + c] = sum;
      }
    }
  });
  return { data: found, width: after, height };
}

function alongRows({ data, width, height }, after) {
  if (height === after) return { data, width, height };
  const found = new Uint8Array(3 * width * after);
  weights(height, after).forEach(({ first, share }, y) => {
    for (let n = 0; n < 3 * width; n++) {
      let sum = 0.5;
      for (let k = 0; k < share.length; k++) sum += share[k] * data[3 * (first + k) * width + n];
      found[3 * y * width + n] = sum;
    }
  });
  return { data: found, width, height: after };
}

/** The offset is half of what is cut off, rounded half to even. */
function cropCentre({ data, width, height }, wide, high) {
  const [left, top] = [roundHalfToEven((width - wide) / 2), roundHalfToEven((height - high) / 2)];
  const found = new Uint8Array(3 * wide * high);
  for (let y = 0; y < high; y++) {
    const start = 3 * ((top + y) * width + left);
    found.set(data.subarray(start, start + 3 * wide), 3 * y * wide);
  }
  return { data: found, width: wide, height: high };
}

function roundHalfToEven(x) {
  const whole = Math.floor(x);
  return x - whole === 0.5 ? whole + (whole % 2) : Math.round(x);
}
