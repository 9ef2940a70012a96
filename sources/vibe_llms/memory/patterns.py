"""Patterns of the gate: users speaking about themselves, letters, and orders to a model."""

# ruff: noqa: E501, RUF001  (patterns in several languages and scripts)
from __future__ import annotations

#: Words people use for themselves; a question without one says nothing about them.
ONESELF = r"""(?ix) \b (?:
      i | i'm | i've | i'd | i'll | my | mine | me | myself | we | our | ours | us
    | ich | mich | mir | mein(?:e[nmrs]?)? | wir | uns | unser(?:e[nmrs]?)?
    | je | j'\w+ | moi | mon | ma | mes | nous | notre | nos
    | yo | mí | mi | mis | mío | conmigo | nosotr[oa]s | nuestr[oa]s?
    | eu | mim | meus? | minhas? | comigo | nós | noss[oa]s?
    | io | mio | mia | miei | mie | noi | nostr[oaie]
    | ik | mij | mijn | wij | we | ons | onze
    ) \b | 我|咱|私|僕|俺|わたし|ぼく|うちの
    """
#: Start of another person's letter.
LETTER = r"""(?imx)
    ^ [^\S\n]* (?: -{2,} \s* (?: original | forwarded | weitergeleitete | ursprüngliche | message ) .*
      | begin \s forwarded \s message .* | on \s .{5,80} \s wrote: | am \s .{5,80} \s schrieb .{1,80} :
      | le \s .{5,80} \s a \s écrit \s? : | el \s .{5,80} \s escribió:
      | (?: from | von | de | da | van | 发件人 | 差出人 ) [:：] .+ \n (?= [\s\S]{0,400}? ^ [^\S\n]*
        (?: subject | betreff | objet | asunto | assunto | oggetto | onderwerp | 主题 | 件名 ) [:：] )
    ) """
_FORMER_DE = r"(?: alle[rn]? | deine[rn]? | die | den | diese[rn]? | vor(?:her)?igen? | bisherigen? | obigen? | früheren? | sämtliche[rn]? )"
_FORMER_NL = (
    r"(?: alle | al | de | je | jouw | uw | deze | vorige | eerdere | voorgaande | bovenstaande )"
)
#: Orders meant for a model.
INSTRUCTION = rf"""(?ix)
      \b (?: ignore | disregard | forget | override | bypass ) \s+
         (?: (?: all | any | of | the | these | those | your | my | every | previous | prior | above
               | earlier | preceding | other | safety | system ) \s+ )*
         (?: instructions? | prompts? | rules? | guidelines? | directions? | messages? | context
           | everything \s+ (?: you | above | before | prior | that | i \s+ (?: said | told ) )
           | above | previous ) \b
    | \b system \s+ (?: prompt | message | instructions? ) \b
    | \b developer \s+ (?: prompt | message | instructions? ) \b | \b enter \s+ developer \s+ mode
    | \b (?: new | updated | real | actual | following ) \s+ instructions? \s* :
    | \b you \s+ (?: are \s+ now | must \s+ now | will \s+ now ) \b
    | \b from \s+ now \s+ on ,? \s+ (?: you | the \s+ (?: assistant | model | ai ) ) \b
    | \b (?: act | behave | respond ) \s+ as \s+ (?: if \s+ you | though \s+ you | dan \b
         | an? \s+ (?: unrestricted | unfiltered | uncensored | evil ) )
    | \b pretend \s+ (?: to \s+ be | that \s+ you | you )
    | \b (?: do \s+ not | don't | never ) \s+ (?: tell | inform | warn | ask ) \s+
         (?: the \s+ )? (?: user | person | human ) \b
    | \b jailbr (?: eak | oken ) | \b DAN \s+ mode
    | < /? (?: system | assistant | instructions? | \|im_ ) | <\| | \[ /? INST \] | <</? SYS
    | (?<! \b ich \s ) \b (?: ignorier\w* | vergiss | vergesst | missacht\w* | überschreib\w* ) \s+
      (?: {_FORMER_DE} \s+ ){{1,4}} (?: anweisung\w* | instruktion\w* | vorgabe\w* | prompts?
        | systemregel\w* | richtlinie\w* )
    | \b system(?:prompt|anweisung|nachricht)\w* | \b (?: ab \s (?: jetzt | sofort ) | von \s nun \s an ) \s
      (?: bist | musst | wirst | sollst | antwortest ) \s du \b | \b du \s bist \s (?: jetzt | ab \s sofort ) \b
    | (?<! j' ) (?<! je \s ) \b (?: ignore[zr]? | oublie[zr]? | (?: tiens | tenez ) \s pas \s compte
        \s (?: de | des ) | contourne[zr]? ) \s+ (?: (?: toutes? | tous | les | tes | vos | ces ) \s+ )*
      (?: instructions? | consignes? | règles? | directives? | messages? ) \s
      (?: précédent | antérieur | ci-dessus | système | données | initiales )
    | (?<! j' ) (?<! je \s ) \b (?: ignore[zr]? | oublie[zr]? ) \s (?: toutes? \s )? (?: tes | vos ) \s
      (?: instructions? | consignes? | directives? ) \b
    | \b (?: prompt | message | instructions? ) \s système \b
    | \b (?: tu \s es | vous \s êtes ) \s (?: maintenant | désormais ) \s (?: un | une | dan \b )
    | \b (?: à \s partir \s de \s maintenant | désormais ) ,? \s (?: tu | vous ) \b
    | (?<! yo \s ) \b (?: ignor[ae] | ignorad | olvid[ae] | descart[ae] | omit[ea]
        | haz \s caso \s omiso \s (?: de | a ) ) \s+ (?: (?: todas? | todos | las | los | tus | sus ) \s+ )*
      (?: instrucciones | indicaciones | reglas | órdenes | directrices | mensajes ) \s
      (?: anteriores | previ[oa]s | de \s arriba | del \s sistema )
    | \b (?: prompt | mensaje | instrucciones ) \s del? \s sistema \b
    | \b a \s partir \s de \s (?: ahora | agora ) ,? \s (?: eres | debes | tú | usted | responde\w* | você )
    | \b (?: ignore | ignora | esqueça | esquece | desconsidere | descarte ) \s+
      (?: (?: todas | todos | as | os | suas | tuas ) \s+ )*
      (?: instruções | regras | ordens | orientações | mensagens ) \s
      (?: anteriores | prévias | acima | do \s sistema )
    | \b (?: prompt | mensagem | instruções ) \s do \s sistema \b | \b agora \s você \s é \s (?: um | uma )
    | (?<! \b io \s ) \b (?: ignora | ignorate | dimentica | dimenticate | trascura | scarta ) \s+
      (?: (?: tutte | tutti | le | i | gli | tue | vostre | queste ) \s+ )*
      (?: istruzioni | regole | indicazioni | direttive | messaggi ) \s
      (?: precedenti | qui \s sopra | di \s sistema | sopra )
    | \b (?: prompt | messaggio | istruzioni ) \s di \s sistema \b
    | \b d (?: 'ora | a \s (?: ora | adesso ) ) \s in \s poi ,? \s (?: sei | devi | tu | rispond\w+ )
    | (?<! \b ik \s ) \b (?: negeer | vergeet | omzeil ) \s+ (?: {_FORMER_NL} \s+ ){{1,4}}
      (?: instructies? | aanwijzingen | opdrachten | richtlijnen | systeemregels | prompts? )
    | \b systeem(?:prompt|bericht|instructie)\w* | \b vanaf \s nu \s (?: ben | moet | zul | antwoord ) \s (?: je | jij | u )
    | (?<! 我 ) (?<! 我们 ) (?<! 了 ) (?: 忽略 | 无视 | 忘记 | 忘掉 | 不要理会 | 别管 ) (?! 了 ) [^。！？\n]{{0,8}}
      (?: 之前 | 以上 | 上面 | 先前 | 前面 | 所有 | 全部 | 你的 | 系统 ) [^。！？\n]{{0,6}}
      (?: 指令 | 指示 | 规则 | 提示 | 命令 | 说明 )
    | 系统提示 | 从现在(?:开始|起)[，,]?你 | 你现在是
    | (?: 以前 | これまで | 今まで | 上記 | 先ほど | すべて | 全て | システム ) [^。！？\n]{{0,8}}
      (?: 指示 | 命令 | ルール | 規則 | プロンプト | 指令 ) [^。！？\n]{{0,4}} (?: 無視し | 忘れ | 破棄し )
      (?: て (?= \s* (?: $ | [、,。!] | ください | 下さい | くれ )) | ろ | なさい | せよ )
    | システムプロンプト | (?: 今から | これから ) (?: 、 )? (?: あなた | 君 | お前 ) は
    """
#: Duties of a model, which no fact about a person contains.
DIRECTIVE = r"""(?ix)
    \b (?: assistant | model | chatbot | ai ) \s+
        (?: must | should | shall | has \s+ to | is \s+ to | needs? \s+ to | will \s+ always
          | is \s+ (?: allowed | required | instructed | authori[sz]ed ) )
    | \b (?: assistent | modell | chatbot | ki ) \s (?: muss | soll | sollte | darf )
    | \b (?: assistant | modèle | chatbot | ia ) \s (?: doit | devrait | peut )
    | \b (?: asistente | modelo | chatbot | ia ) \s (?: debe | debería | tiene \s que | puede )
    | \b (?: assistente | modelo | chatbot | ia ) \s (?: deve | deveria | precisa | tem \s (?: que | de ) )
    | \b (?: assistente | modello | chatbot | ia ) \s (?: deve | dovrebbe | può )
    | \b (?: assistent | model | chatbot ) \s (?: moet | mag | zal )
    | (?: 助手 | 助理 | 模型 | AI ) (?: 必须 | 应该 | 应当 | 要 | 可以 )
    | (?: アシスタント | モデル | AI ) は [^。]{0,30} (?: べき | なければ | すること | しなさい )
    """
#: Beginnings of orders; no fact about a person starts with one.
COMMAND = r"""(?ix)
    \s* (?: (?: always | never | please | do \s not | don't | you \s (?: must | should | shall | have
          | need | are | can | will ) | execute | run | call | send | reveal | respond
          | answer | reply | ignore | disregard | remember \s to | make \s sure | be \s sure
          | immer | niemals | nie | bitte | antworte | sende | ignoriere | führe | du \s (?: musst | sollst )
          | toujours | jamais | veuillez | réponds | répondez | envoie | envoyez | ignore[zr]
          | siempre | nunca | responde | responda | envía | envíe | ignora | debes
          | sempre | responda | envie | mai | rispondi | invia | devi
          | altijd | nooit | antwoord | stuur | negeer ) \b
      | 总是 | 永远 | 必须 | 务必 | 始终 | 请 | 不要 | 常に | 必ず | 絶対に )
    """
