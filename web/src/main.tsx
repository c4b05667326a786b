import { render } from 'preact'
import { App } from './app.tsx'
import { followLanguage } from './lib/i18n.ts'
import { followServer } from './lib/live.ts'
import { keepForOffline } from './lib/offline.ts'
import { followTheme } from './lib/preferences.ts'
import { followAddress } from './lib/router.ts'
import './style/base.css'
import './style/parts.css'
import './style/chat.css'
import './style/prose.css'
import './style/pages.css'

followTheme()
followLanguage()
followAddress()
followServer()
keepForOffline()
render(<App />, document.getElementById('app')!)
