"""Words that invented names would otherwise be by chance: cities, people, everyday and vulgar words.

English: what the name patterns of ``quality.prose`` make and common vocabularies hold as one token, in many languages,
with some by hand. Korean: the same, and short vulgar words that stand in no name either. Some of them stand in filler
and in facts.
"""

from collections.abc import Mapping

REAL_WORDS: Mapping[str, frozenset[str]] = {
    "en": frozenset(
        """
    balas bales balon banal bandar bandas bandes bandit baran barat bares barker baron bastan belir belum benar bender
    benim benin beras berat berkel berken berkom bestem besten bevan bevat bevel bever bevor bilal bilan bilen bilim
    bilin bilir binder birken bolan bolas boleh bolet boman boner bones bonus borden border borel bores boris boron
    boston boven bulan bulat bulun bundan bundes bunun burden buren buster dalam dalit damal damen dames damit damon
    damos danam danas dandel danes danos darah daran dares darin darken darker darum daven davis davon davos delas
    delen deles delet delim delir delves delvin demir demol demon demos demur denen denim denis denom deras derel
    deren deres derin destes destin devam devel devem deven dever devil devin devol devon dilat dilem dimas dimer
    dimes dimin dimit dinam dinas diner diren diret distal distin diven diver dives divis divor divul dolan dolar
    dolom dolor domen domes domin donal dones donor donut doran doris dover doves dovet dovol dumas dunes duran durum
    dustin duval duvar duvet falam falar falun famer famil fanden fandom farah fares fasten faster favor felat felis
    felon femen femin femur fender feral fester fever filas filer files filet filos final finan finden finder findet
    finer fines finir finit fires fives folos fondos foram forder fordul forem fores forum foster fumar fumes funer
    galen galer gales galvan galvin gaman gamer games gamut ganar ganas ganes garam garden garder garis gaston gastos
    gavel gavin gelar gelas gelen gelin gelir gender genel gener genes genet genom genus geral gerar geval geven gevol
    giles girder giron given giver gives golan goles gomes goran gordon gostar gover govor gurus gustan halal halen
    halos halus halves hamas hamil hanan handel handen hanem haram harden harder hardin harem harum harus hastal
    hasten havas havel haven haver helen hemat hemen hemos heral heran heres herkes heron herum hester hilar himal
    hinder hindus hines hiram hires histor hiver hives holen holes homem homen homer homes homin homot honom honor
    horas hordes horus hostel hover human humor humus hunan huron kalah kalam kalan kalem kalin kalor kamal kamar
    kamen kamer kamil kamis kanal kanan karam karan karar karat karel karen karet karim karin karit karol kavan kelas
    kelet kelvin kemal kenan kendal keram keras kerat keren keres kevin kiles kilim kilom kilos kinder kines kinet
    kiran kolem koles kolom kolon kolor komen komis komun konum konus koran koris koron korun kosten kostet koval
    kulit kumar kunden kunder kuris kurul kurum laman lamar lames lamin landen lander landes landet landon lanes
    larkin laval lavar laver lavor lemah lemon lender lenin leren lester levar level leven lever leves levin levit
    limes limit limon linal lindas linden lindos linen liner lines listar listas listen lister liver lives livet lolit
    london lorem loren lover loves lulus lumen lumin lunar lunes lures luster malah malam malas maler males malin
    malos mandal mandar mandat mandel manis manit manor manos manus manut marah mares maret marin maris marit marken
    marker market markus master maven maver melan melin melon melvin memas memer memes memor memos mendel mendes menem
    mener menet menit menon menor menos menus merah merit merkel merken milan miles milit milos minas minat minden
    minder miner mines minim minis minor minul minum minus minut mirar miras miros mister mivel molar moles momen
    monat monet monit monol monos monot moral moran moras morel mores morin morir moris moron mover moves mules mulut
    mundur murah mural murat murder muros muster namam naman namen names namin namun nanom nanos nanot naran naras
    naval neler nemat nemen nemus nestor never nevis niles nimet nivel nolan nomen nomes nomin nomor norden novas
    novel novem novos numar numer nunes paler palin palis palvel panam panas pandas pandit panel panes panor paral
    param paran parar paras pardon paren pares paris parker parol parum pastas pastel pastes paston pastor pavel paves
    pavil pelas pelos pelot pelvis pemas pemer penal penas pener penet penis penit penuh peral peran perder peres
    peril perin perkin perut pilar pilas piles pilih pilot pines pinot pistas pistes pistol piston pivot polar polen
    poles polin polis polit polos pomen pomer ponder ponen poner pores poros postal postan poster postes postul povas
    pover povol povos puluh pulver puris purus raman ramas ramen ramon ramos ramus randal random randon rarer rares
    raster ravel raven relat relem remar remem remer remis remit remon remot remun renal renat rendah rendel render
    rendus renin renom rerum rerun restar resten rester restit restor restos revel reven rever revis revit revol rilas
    riman ristor rival rivel river rivet rivol roles roman ronan roster rover ruler rules rumah ruman rumen rumin
    rumor rumus runat runes rural salah salam salas salat saleh salem salen sales salim salir salom salon salut salvar
    saman samar samen samir samos samot sanat sandal sander sanit sarah saran saras sarat sardar sarkar saver saves
    savon savor savun selam selen selon selves seman semen semin semis senden sender senin serat serem seren seres
    serum seven sever seves silah silam silas siles silos silvan silver simil simon simul sinal sinar sinon sinus
    siren sistem sister solar solen soles solit solos solver solves somet somit somos sonar sonder sonor sonos soren
    sores sorun sosten sostit sulit suman sumar sumer sunil surat sustit tales talon tamam taman tamar tamas tamen
    tamil tanah tandem tandis tanul tardes tarih tarin tarot tarun tastes taver telah telas telem teles telur teman
    temas temat temel temer temor temos tender tendon tener tenir tenis tenor terem teren terken terus testen tester
    testes testim testis tiles timer times timet timor timur tinder tiran tirar tirer tires tirol tiros tiver toler
    toman tomar tomas tomat tomon tonal tonel toner tones tonos torah torus tulis tulum tumor tuner tunes tunis turin
    turun turut valam valet valor valut valves vamos vandal vanden vander vanes varan varit varun velas velit velvet
    vemos vendar vendas venden vender vendor venen vener venet venir venit venom venus verden verder verdes verdun
    veren veril verir veron vestir vimos vinden vines vinos viral virat virol virus vistas vistos vivan viven viver
    vives vivir vivos volar volat voler volum volut volver vomit vonat vorder vores vulvan vulvar vulvas zaman zanim
    zarar zastos zelen zelim zeros ziren zomer zonal zonas zonder zones zoran zulus zuvor
    """.split()
    ),
    "ko": frozenset(
        """
    거라고 거머리 거지 고구마 고모부 기다리 기러기 나가던 너구리 네거리 다라고 다리미 더라고 더라도 도토리
    두루미 로부터 마누라 마무리 모두가 미나리 미친 바구니 바나나 바라보 바보 보도록 보지 사다리 소나무
    수레가 시발 아가미 아니고 아니다 아니라 아무도 어머니 어미니 우리가 우리나라 이라고 이모부 자지 제비가
    조지 지나가 카메라 코로나 토마토 하거나 하기도 하나님 하다고 하도록 호루라기 호모
    """.split()
    ),
}
