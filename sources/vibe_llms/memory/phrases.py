"""Words by which the gate knows greetings, questions, requests and instructions, in nine languages.

English, German, French, Spanish, Portuguese, Italian, Dutch, Chinese and Japanese. The tables are
small and cautious: what they do not know reaches a model, and what a person tells shall not be
refused. So a verb that may also be "I …" without the pronoun counts only with what it asks for.
"""

# ruff: noqa: E501, RUF001  (tables of phrases, also in other scripts)
from __future__ import annotations

GREETINGS = """
    hi hello hey good morning afternoon evening night day gm gn
    thanks thank thx ty you very much so a lot many
    ok okay k kk yes yeah yep yup no nope nah sure fine great nice cool perfect awesome right
    exactly alright understood got it i see bye goodbye later cheers welcome please sorry wow lol
    haha hm hmm well then now there all that is was this works for me again everyone
    go on ahead continue more next stop done well-done
    hallo moin servus grüß gott guten morgen tag abend gute nacht danke vielen dank schön sehr bitte
    ja nein gut prima super alles klar genau tschüss tschüß auf wiedersehen bis bald
    bonjour bonsoir salut coucou merci beaucoup bien oui non d'accord parfait revoir bonne journée
    au à bientôt s'il vous te plaît
    hola buenos días buenas tardes noches gracias muchas muy vale sí si claro perfecto adiós hasta
    luego por favor de nada
    olá oi bom dia boa tarde noite obrigado obrigada muito sim não tchau até logo perfeito
    ciao buongiorno buonasera salve grazie mille tante va bene sì certo perfetto arrivederci prego
    dag goedemorgen goedemiddag goedenavond bedankt dank je u wel hartelijk nee graag prima tot ziens
    """
#: The same where nothing stands between words.
GREETING_SIGNS = (
    "你好|您好|大家好|早上好|早安|晚上好|晚安|下午好|谢谢|多谢|非常感谢|感谢|不客气|好的|好吧|好|是的|对|不是|没事|再见|拜拜|明白了|知道了|了解|您|你|了|啊|吗"
    "|こんにちは|こんばんは|おはよう|おやすみ|なさい|ございます|ございました|ありがとう|どうも|はい|いいえ|うん"
    "|そうです|そうですね|ね|わかりました|分かりました|了解です|了解|さようなら|じゃあ|また|お願いします|よろしく|すみません|ごめん|です"
)
_ASIDE = r"""
    (?: and | but | so | ok | okay | hey | hi | please | well | then | now | also | just
      | und | aber | also | bitte | hallo | et | mais | alors | bonjour | salut | y | pero | entonces
      | hola | e | mas | então | olá | por \s favor | ma | allora | ciao | per \s favore | en | maar | dus
      | hoi | alsjeblieft ) [\s,!]+
    """
#: What a question begins with that asks, and tells nothing by itself.
QUESTION = rf"""(?ix)
    [\s¿]* (?: {_ASIDE} )* ¿? (?:
        who | whom | whose | what | what's | when | where | why | which | how
      | can | could | would | will | should | shall | is | are | was | were | am | do | does | did
      | has | have | had | may | might | must
      | wer | wem | wen | wessen | was | wann | wo | woher | wohin | warum | wieso | weshalb | wie
      | welche[rsnm]? | ist | sind | hat | haben | kann | kannst | könnt | könntest | können | wird
      | gibt | soll | darf | muss
      | qui | quand | où | pourquoi | comment | combien | que | qu'est-ce | quel(?:le)?s?
      | est-ce | est-il | y \s a-t-il | peux-tu | pouvez-vous | pourrais-tu | pourriez-vous
      | quién(?:es)? | qué | cuándo | dónde | cómo | cuál(?:es)? | cuánt[oa]s? | por \s qué
      | puedes | puede | podrías | podría | hay | es | son
      | quem | quando | onde | como | quanto[sa]? | quanta | qual | quais | o \s que | por \s que
      | você \s (?: pode | poderia ) | pode | poderia | existe | há | é
      | chi | cosa | che | dove | perché | come | quale | quali | qual | quant[oaie] | puoi | può
      | potresti | potrebbe | c'è | ci \s sono
      | wie | wat | wanneer | waar | waarom | hoe | hoeveel | welke? | kun | kunt | kan | zou | is
      | zijn | heeft
      ) \b
    """
#: Questions where nothing stands between words; they may lack the mark.
QUESTION_SIGNS = (
    "(?:什么|谁|哪|怎么|怎样|为什么|多少|几点|何时|是否|能不能|可不可以).{0,200}[?\uff1f]\\s*$"
    "|吗[?\uff1f。]?\\s*$"
    "|(?:何|誰|どこ|いつ|なぜ|どうして|どう|どれ|どの|どちら|いくら|いくつ).{0,200}[?\uff1f]\\s*$"
    "|(?:ですか|でしょうか)[?\uff1f。]?\\s*$"
)
#: Where a question or a request speaks of the user, it may tell something of the user.
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
#: Whom something is to be told or given: nothing is said of the user by that.
_WHOM = r"(?: [\s-]+ (?: to \s+ )? (?: me | us | mir | uns | moi | nous | mij | ons | me ) \b )?"
_OBJECT = r"""(?: das | den | die | dem | dies\w* | folgende\w* | mir | uns | bitte | kurz )"""
REQUEST = rf"""(?ix)
    [\s¡]* (?: {_ASIDE} )* (?:
      (?: write | translate | summari[sz]e | explain | tell | show | give | list | find | fix | make
        | create | generate | describe | compare | calculate | compute | convert | rewrite
        | continue | check | search | look | print | run | solve | draw | define | name | help
        | repeat | answer | add | remove | refactor | implement | debug | test | open | read | send
        | try | proofread | rephrase | paraphrase | correct | improve | shorten | edit ) \b
      (?! \s+ (?: is | are | was | were ) \b | \s* : ) {_WHOM}
    | (?: schreib | übersetz | erklär | sag | zeig | gib | nenn | hilf | fass | mach | prüf
        | korrigier | beschreib | vergleich | berechne | such ) \b {_WHOM}
    | (?: schreibe | übersetze | erkläre | sage | zeige | nenne | fasse | mache | prüfe | korrigiere
        | beschreibe | vergleiche | suche | erstelle | verbessere | kürze ) \s+ {_OBJECT} \b
    | \w+en \s Sie \b {_WHOM}
    | (?: écri[st] | écrivez | traduis | traduisez | résume[zr]? | explique[zr]? | dis | dites
        | montre[zr]? | donne[zr]? | liste[zr]? | trouve[zr]? | fais | faites | crée[zr]? | décris
        | décrivez | compare[zr]? | calcule[zr]? | vérifie[zr]? | cherche[zr]? | corrige[zr]?
        | aide[zr]? ) \b {_WHOM}
    | (?: dime | dame | muéstrame | explícame | escríbeme | hazme | ayúdame | tradúceme | búscame )
      \b
    | (?: escrib[ea] | traduc[ea] | traduzca | resum[ea] | explica | explique | corrige | corrija
        | calcula | calcule | haz | haga | crea | genera | describe | compara | busca ) \s+
      (?: esto | este | esta | estos | estas | el | la | los | las | lo | un | una | al ) \b
    | (?: escreva | traduza | resuma | explique | diga | mostre | dê | liste | crie | descreva
        | compare | calcule | corrija | procure | ajude | faça | me \s (?: diga | dê | ajude | explique
        | mostre ) ) \b {_WHOM}
    | (?: scrivi | traduci | riassumi | spiega | spiegami | dimmi | mostrami | dammi | elenca | trova
        | crea | descrivi | confronta | calcola | correggi | cerca | aiutami | scrivimi | fammi ) \b
    | (?: schrijf | vertaal | geef | maak | beschrijf | vergelijk | bereken | corrigeer | zeg | toon
        | leg | vat | help ) \s+ (?: me | mij | ons | dit | deze | dat | het | de | alsjeblieft ) \b
    | (?: schrijf | vertaal | geef ) \s+ een \b
    | (?: 请 | 麻烦 )? (?: 帮我 | 帮忙 | 告诉我 | 给我 | 教我 | 为我 )
    | 请 (?! 假 | 客 ) | (?: 翻译 | 解释 | 总结 | 列出 | 计算 | 改写 | 润色 ) (?: 一下 | 这 | 下面 | 以下 | : | ： )
    ) """
#: The same within a question or where nothing stands between words.
TO_ME = (
    r"(?i)\b(?:tell|give|show|teach|send|explain|help)(?: to)? (?:me|us)\b"
    r"|\b(?:mir|uns) (?:sagen|zeigen|geben|erklären|helfen)\b|\b(?:me|nous) (?:dire|montrer|donner)\b"
    r"|帮我|告诉我|给我|教我|为我|我想知道|请问"
)
#: Japanese asks at the end.
ASKED = (
    "(?:て|で)(?:ください|下さい|くれ|くれる|ほしい|もらえ[^。]*)[。.!！?？]*$"
    "|(?:教え|書い|訳し|翻訳し|まとめ|説明し|直し|見せ|調べ)て(?:ね|よ)?[。.!！]*$"
)
#: A request for something to be done with a text, which then comes behind a colon.
MATERIAL = r"""(?ix)
    (?: ^ | (?<= [.!?\n] ) ) [^\S\n]*
    (?: (?: please | can | could | would | you | now | and | then | also | hey | hi | ok | help | me
        | to | bitte | kannst | könntest | können | du | sie | mir | peux-tu | pouvez-vous | puedes
        | podrías | por | favor | você | pode | puoi | kun | je | veuillez ) [\s,]+ ){0,6}
    (?: (?: translate | summari[sz]e | proofread | rephrase | paraphrase | rewrite | correct
          | improve | shorten | edit | polish | übersetze? | fasse? | korrigiere? | formuliere?
          | kürze? | traduis | traduisez | traduire | résume[zr]? | corrige[zr]? | reformule[zr]?
          | traduce | traducir | resume | resumir | corregir | traduza | traduzir | resuma | corrija
          | traduci | tradurre | riassumi | correggi | vertaal | corrigeer | herschrijf ) \b
      | (?: explain | analy[sz]e | review | reply \s to | respond \s to | answer | fix | check
          | classify | read | erkläre? | prüfe? | beantworte | lies | explique[zr]? | vérifie[zr]?
          | explica | revisa | spiega | verbeter ) \s+ \w )
    [^.!?:\n]{0,120} [:\uff1a]
    | (?: 翻译 | 总结 | 润色 | 改写 | 解释 | 校对 ) [^。:\n]{0,40} [:\uff1a]
    | (?: 訳し | 翻訳 | 要約 | 添削 | 校正 ) [^。:\n]{0,40} [:\uff1a]
    """
#: Where somebody else's letter begins.
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
#: What no fact says, though a person may say it of something else.
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
#: What a fact cannot begin with, as it then tells somebody to do something.
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
#: What denies; where nothing stands between words, more words have these signs than deny.
DENIAL = r"""(?ix)
    \b (?: not | never | cannot | no | none | neither | nor | nobody | nothing
      | nicht | nie | niemals | kein\w{0,2} | nichts | weder
      | ne | jamais | rien | aucune? | pas | nunca | jamás | ningún | ninguna | tampoco
      | não | nenhum | nenhuma | nem | non | mai | nessun[oa]? | niet | nooit | geen | niets ) \b
    | \b \w+n['\u2019]t \b | \b n['\u2019] \w
    | 不 | 没 | 沒 | 未曾 | 从未 | ない | なかった | ません | ぬ
    """
#: What has the word of a denial, and denies nothing.
NO_DENIAL = r"""(?ix)
    \b (?: not (?: \s+ | - ) (?: only | just | merely ) | no \s+ (?: doubt | problem | wonder | matter | longer \s+ than )
      | (?: can(?:no|['\u2019])t | cannot | couldn['\u2019]t ) \s+ (?: wait | help | get \s enough | do \s+ without | live \s+ without )
      | not \s+ (?: un | in | im | dis ) \w+ | why \s+ (?: not | don['\u2019]t ) | do(?:es)?n['\u2019]t \s+ (?: forget | mind )
      | nicht \s+ (?: nur | bloß | allein ) | (?: kein | ohne ) \s+ (?: problem | zweifel ) | nicht \s+ wahr
      | (?: ne \s+ )? \w* \s* pas \s+ (?: seulement | que | mal ) | no \s+ s[oó]lo | no \s+ solamente | não \s+ (?: só | apenas )
      | non \s+ (?: solo | soltanto | vedo \s+ l['\u2019]ora ) | niet \s+ (?: alleen | slechts ) ) \b
    | 不仅 | 不只 | 不但 | 不错 | 不同 | 不久 | 不好意思 | 不过 | 没错 | 没问题 | だけで(?: は )? ない | かもしれない | しかない | なければならない
    """
#: What turns a thing down without a word of denial, as a model may put a denial.
DISLIKE = r"""(?ix)
    \b (?: dislik | hat(?:e|es|ed)\b | avoid | refus | reject | lack | without\b | stop | quit | gave \s up | gives \s up
      | unable | unwilling | allerg | intoleran | former | used \s to | no \s longer | skip | miss(?:es|ed)\b | fail
      | un(?:happy|sure|familiar|like|employed|married|certain) | single\b | vegan | vegetarian | abstain | opposed | against )
    """
#: Where one clause ends and the next begins.
CLAUSE = r"""(?ix) [.!?;:,\n…—–。！？；，、]+
    | \b (?: but | and | because | since | before | after | until | while | when | so | though | although | yet | instead
      | aber | sondern | und | weil | bevor | nachdem | bis | als | wenn | obwohl | dafür
      | mais | et | parce | avant | après | quand | pero | sino | y | porque | antes | cuando | mas | e | quando
      | ma | perché | prima | maar | en | omdat | voordat | toen ) \b
    """
