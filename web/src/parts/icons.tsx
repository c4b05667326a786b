/** The goose mark and small line icons on a grid of 16. They are decoration; text says what they mean. */

const PATHS = {
  overview: 'M2 13V8M6 13V3M10 13V6M14 13V9',
  workers: 'M2 3h12v4H2zM2 9h12v4H2zM4.500 5h.01M4.500 11h.01',
  playground: 'M2 3h12v8H7l-3 3v-3H2z',
  sessions: 'M4 2v12M4 6c0 3 8 1 8 5M4 2h.01M12 11v3',
  translate: 'M2 4h7M5.500 2v2M8 4c0 3-3 6-6 7M4 6c1 2 3 4 5 5M8 14l3-7 3 7M9 12h4',
  api: 'M5 4 1.500 8 5 12M11 4l3.500 4-3.500 4M9 3 7 13',
  plus: 'M8 3v10M3 8h10',
  stop: 'M4 4h8v8H4z',
  send: 'M8 13V3M4 7l4-4 4 4',
  again: 'M13 8a5 5 0 1 1-1.500-3.500M13 2v3h-3',
  fork: 'M4 2v12M4 8c5 0 8-1 8-6',
  back: 'M6 3 2 7l4 4M2 7h8a4 4 0 0 1 0 7H8',
  edit: 'M3 13l.7-3L11 2.700 13.300 5 6 12.300z',
  copy: 'M5 5h8v9H5zM3 11V2h8',
  check: 'M3 8.500 6.500 12 13 4.500',
  trash: 'M3 4h10M6 4V2.500h4V4M4.500 4l.5 9.500h6l.5-9.500',
  download: 'M8 2v8M4.500 7 8 10.500 11.500 7M3 13.500h10',
  upload: 'M8 10.500v-8M4.500 6 8 2.500 11.500 6M3 13.500h10',
  search: 'M7 2.500a4.500 4.500 0 1 0 .01 0M10.300 10.300 14 14',
  pause: 'M5 3v10M11 3v10',
  play: 'M4 3l9 5-9 5z',
  system: 'M8 2.500a5.500 5.500 0 1 0 .01 0M8 2.500v11',
  light: 'M8 5a3 3 0 1 0 .01 0M8 1v1.500M8 13.500V15M1 8h1.500M13.500 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1',
  dark: 'M13 10A6 6 0 0 1 6 3a5.500 5.500 0 1 0 7 7z',
  close: 'M4 4l8 8M12 4l-8 8',
  left: 'M10 3 5 8l5 5',
  right: 'M6 3l5 5-5 5',
  down: 'M3 6l5 5 5-5',
  compare: 'M2 3h5v10H2zM9 3h5v10H9z',
  sliders: 'M2 5h6M11 5h3M2 11h2M7 11h7M9.500 3.500v3M5.500 9.500v3',
  tokens: 'M2 4h4v3H2zM8 4h6v3H8zM2 9h6v3H2zM10 9h4v3h-4z',
  home: 'M2 7.500 8 2.500l6 5V14h-4v-4H6v4H2z',
  models: 'M8 1.500 14 5v6l-6 3.500L2 11V5zM2 5l6 3.500L14 5M8 8.500v6',
  keys: 'M6 6a3 3 0 1 0 0 4 3 3 0 0 0 0-4M7 8h7v2.500M11.500 8v2',
  requests: 'M3 2h10v12H3zM5.500 5.500h5M5.500 8h5M5.500 10.500h3',
  batch:
    'M2 2h3v3H2zM6.500 2h3v3h-3zM11 2h3v3h-3zM2 6.500h3v3H2zM6.500 6.500h3v3h-3zM11 6.500h3v3h-3zM2 11h3v3H2zM6.500 11h3v3h-3zM11 11h3v3h-3z',
  menu: 'M2 4h12M2 8h12M2 12h12',
  more: 'M3 8h.01M8 8h.01M13 8h.01',
  pin: 'M8 10v5M4 10h8l-1.500-2V3h1V1.500h-7V3h1v5z',
  link: 'M7 9a2.800 2.800 0 0 0 4 0l2.500-2.500a2.800 2.800 0 0 0-4-4L8.500 3.500M9 7a2.800 2.800 0 0 0-4 0L2.500 9.500a2.800 2.800 0 0 0 4 4l1-1',
  tool: 'M10 2.500a3.500 3.500 0 0 0-3 5L2 12.500 3.500 14l5-5a3.500 3.500 0 0 0 5-4L11.500 7 9 4.500z',
  clip: 'M12.500 7 7.500 12a2.500 2.500 0 0 1-3.500-3.500l6-6a1.700 1.700 0 0 1 2.400 2.400L6.800 10.500',
  folder: 'M1.500 3.500h4.500l1.500 2h7v8h-13z',
  docs: 'M3 2h6l4 4v8H3zM9 2v4h4',
  quantise: 'M2 2h12v12H2zM5 11V9M8 11V5M11 11V7',
  machines: 'M2 3h12v7H2zM8 10v3M5 13.500h6M5 6.500h.01',
  settings: 'M2 4h8M13 4h1M2 8h2M7 8h7M2 12h7M12 12h2M11.500 2.500v3M5.500 6.500v3M10.500 10.500v3',
  panel: 'M2 3h12v10H2zM6 3v10',
  key: 'M6 6a3 3 0 1 0 0 4 3 3 0 0 0 0-4M7 8h7v2.500M11.500 8v2',
} as const

export type IconName = keyof typeof PATHS

export function Icon({ name }: { readonly name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  )
}

/** A skein: three lines of geese in flight. */
export function Goose() {
  return (
    <svg class="goose" viewBox="0 0 32 32" aria-hidden="true">
      <path d="M3 21 16 8l13 6" />
      <path d="M9 25 17 16.500 25 20" />
      <path d="M15 28l3.500-4 3.500 1.600" />
    </svg>
  )
}
