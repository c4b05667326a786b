"""The little world of the demo model: plain tables, English and Chinese side by side.

Everything the model can know is written here by hand or composed from these tables by
generate.py. No text from outside the project is used.
"""

# English name, other English names, Chinese name, capital, Chinese capital, continent
_COUNTRIES = """
France||法国|Paris|巴黎|Europe
Germany||德国|Berlin|柏林|Europe
Italy||意大利|Rome|罗马|Europe
Spain||西班牙|Madrid|马德里|Europe
Portugal||葡萄牙|Lisbon|里斯本|Europe
the United Kingdom|the UK,UK,England,Great Britain|英国|London|伦敦|Europe
Ireland||爱尔兰|Dublin|都柏林|Europe
the Netherlands|Netherlands,Holland|荷兰|Amsterdam|阿姆斯特丹|Europe
Belgium||比利时|Brussels|布鲁塞尔|Europe
Switzerland||瑞士|Bern|伯尔尼|Europe
Austria||奥地利|Vienna|维也纳|Europe
Poland||波兰|Warsaw|华沙|Europe
the Czech Republic|Czechia|捷克|Prague|布拉格|Europe
Slovakia||斯洛伐克|Bratislava|布拉迪斯拉发|Europe
Hungary||匈牙利|Budapest|布达佩斯|Europe
Romania||罗马尼亚|Bucharest|布加勒斯特|Europe
Bulgaria||保加利亚|Sofia|索非亚|Europe
Greece||希腊|Athens|雅典|Europe
Croatia||克罗地亚|Zagreb|萨格勒布|Europe
Serbia||塞尔维亚|Belgrade|贝尔格莱德|Europe
Slovenia||斯洛文尼亚|Ljubljana|卢布尔雅那|Europe
Denmark||丹麦|Copenhagen|哥本哈根|Europe
Norway||挪威|Oslo|奥斯陆|Europe
Sweden||瑞典|Stockholm|斯德哥尔摩|Europe
Finland||芬兰|Helsinki|赫尔辛基|Europe
Iceland||冰岛|Reykjavik|雷克雅未克|Europe
Estonia||爱沙尼亚|Tallinn|塔林|Europe
Latvia||拉脱维亚|Riga|里加|Europe
Lithuania||立陶宛|Vilnius|维尔纽斯|Europe
Ukraine||乌克兰|Kyiv|基辅|Europe
Russia||俄罗斯|Moscow|莫斯科|Europe
Albania||阿尔巴尼亚|Tirana|地拉那|Europe
China||中国|Beijing|北京|Asia
Japan||日本|Tokyo|东京|Asia
South Korea|Korea|韩国|Seoul|首尔|Asia
Mongolia||蒙古|Ulaanbaatar|乌兰巴托|Asia
India||印度|New Delhi|新德里|Asia
Pakistan||巴基斯坦|Islamabad|伊斯兰堡|Asia
Nepal||尼泊尔|Kathmandu|加德满都|Asia
Bangladesh||孟加拉国|Dhaka|达卡|Asia
Thailand||泰国|Bangkok|曼谷|Asia
Vietnam||越南|Hanoi|河内|Asia
Laos||老挝|Vientiane|万象|Asia
Cambodia||柬埔寨|Phnom Penh|金边|Asia
Malaysia||马来西亚|Kuala Lumpur|吉隆坡|Asia
Indonesia||印度尼西亚|Jakarta|雅加达|Asia
the Philippines|Philippines|菲律宾|Manila|马尼拉|Asia
Kazakhstan||哈萨克斯坦|Astana|阿斯塔纳|Asia
Iran||伊朗|Tehran|德黑兰|Asia
Iraq||伊拉克|Baghdad|巴格达|Asia
Turkey||土耳其|Ankara|安卡拉|Asia
Saudi Arabia||沙特阿拉伯|Riyadh|利雅得|Asia
Qatar||卡塔尔|Doha|多哈|Asia
Jordan||约旦|Amman|安曼|Asia
Lebanon||黎巴嫩|Beirut|贝鲁特|Asia
Georgia||格鲁吉亚|Tbilisi|第比利斯|Asia
Armenia||亚美尼亚|Yerevan|埃里温|Asia
Singapore||新加坡|Singapore|新加坡|Asia
Egypt||埃及|Cairo|开罗|Africa
Morocco||摩洛哥|Rabat|拉巴特|Africa
Algeria||阿尔及利亚|Algiers|阿尔及尔|Africa
Tunisia||突尼斯|Tunis|突尼斯|Africa
Libya||利比亚|Tripoli|的黎波里|Africa
Ethiopia||埃塞俄比亚|Addis Ababa|亚的斯亚贝巴|Africa
Kenya||肯尼亚|Nairobi|内罗毕|Africa
Uganda||乌干达|Kampala|坎帕拉|Africa
Nigeria||尼日利亚|Abuja|阿布贾|Africa
Ghana||加纳|Accra|阿克拉|Africa
Senegal||塞内加尔|Dakar|达喀尔|Africa
South Africa||南非|Pretoria|比勒陀利亚|Africa
Zambia||赞比亚|Lusaka|卢萨卡|Africa
Zimbabwe||津巴布韦|Harare|哈拉雷|Africa
Angola||安哥拉|Luanda|罗安达|Africa
Madagascar||马达加斯加|Antananarivo|塔那那利佛|Africa
the United States|the USA,USA,the US,America|美国|Washington|华盛顿|North America
Canada||加拿大|Ottawa|渥太华|North America
Mexico||墨西哥|Mexico City|墨西哥城|North America
Cuba||古巴|Havana|哈瓦那|North America
Jamaica||牙买加|Kingston|金斯敦|North America
Panama||巴拿马|Panama City|巴拿马城|North America
Costa Rica||哥斯达黎加|San Jose|圣何塞|North America
Brazil||巴西|Brasilia|巴西利亚|South America
Argentina||阿根廷|Buenos Aires|布宜诺斯艾利斯|South America
Chile||智利|Santiago|圣地亚哥|South America
Peru||秘鲁|Lima|利马|South America
Colombia||哥伦比亚|Bogota|波哥大|South America
Venezuela||委内瑞拉|Caracas|加拉加斯|South America
Ecuador||厄瓜多尔|Quito|基多|South America
Uruguay||乌拉圭|Montevideo|蒙得维的亚|South America
Paraguay||巴拉圭|Asuncion|亚松森|South America
Australia||澳大利亚|Canberra|堪培拉|Oceania
New Zealand||新西兰|Wellington|惠灵顿|Oceania
Fiji||斐济|Suva|苏瓦|Oceania
"""
COUNTRIES = []
for _line in _COUNTRIES.strip().splitlines():
    _en, _alias, _zh, _cap, _cap_zh, _cont = _line.split("|")
    COUNTRIES.append({"en": _en, "alias": [a for a in _alias.split(",") if a], "zh": _zh,
                      "capital": {"en": _cap, "zh": _cap_zh}, "continent": _cont})
CONTINENTS = {"Europe": "欧洲", "Asia": "亚洲", "Africa": "非洲", "North America": "北美洲",
              "South America": "南美洲", "Oceania": "大洋洲"}

DAYS = [("Monday", "星期一"), ("Tuesday", "星期二"), ("Wednesday", "星期三"), ("Thursday", "星期四"),
        ("Friday", "星期五"), ("Saturday", "星期六"), ("Sunday", "星期日")]
MONTHS = [("January", "一月", 31), ("February", "二月", 28), ("March", "三月", 31), ("April", "四月", 30),
          ("May", "五月", 31), ("June", "六月", 30), ("July", "七月", 31), ("August", "八月", 31),
          ("September", "九月", 30), ("October", "十月", 31), ("November", "十一月", 30), ("December", "十二月", 31)]
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
            "eleventh", "twelfth"]
NUMBERS = [("one", "一"), ("two", "二"), ("three", "三"), ("four", "四"), ("five", "五"), ("six", "六"),
           ("seven", "七"), ("eight", "八"), ("nine", "九"), ("ten", "十")]

COLOURS = [("red", "红色"), ("blue", "蓝色"), ("green", "绿色"), ("yellow", "黄色"), ("black", "黑色"),
           ("white", "白色"), ("orange", "橙色"), ("purple", "紫色"), ("pink", "粉色"), ("brown", "棕色"),
           ("grey", "灰色"), ("gold", "金色")]
# thing, Chinese thing, colour
THINGS = [("the sky", "天空", "blue"), ("grass", "草", "green"), ("snow", "雪", "white"), ("a banana", "香蕉", "yellow"),
          ("a strawberry", "草莓", "red"), ("a carrot", "胡萝卜", "orange"), ("coal", "煤", "black"),
          ("chocolate", "巧克力", "brown"), ("a lemon", "柠檬", "yellow"), ("the sea", "大海", "blue"),
          ("the sun", "太阳", "yellow"), ("a tomato", "西红柿", "red"), ("milk", "牛奶", "white"),
          ("a frog", "青蛙", "green"), ("a crow", "乌鸦", "black"), ("an elephant", "大象", "grey"),
          ("a flamingo", "火烈鸟", "pink"), ("an eggplant", "茄子", "purple"), ("a cloud", "云", "white"),
          ("blood", "血", "red"), ("a leaf", "树叶", "green"), ("a pumpkin", "南瓜", "orange"),
          ("a crown", "王冠", "gold"), ("a cucumber", "黄瓜", "green")]
MIXES = [("red", "blue", "purple"), ("red", "yellow", "orange"), ("blue", "yellow", "green"),
         ("red", "white", "pink"), ("black", "white", "grey"), ("red", "green", "brown")]

# animal, Chinese, classifier, legs, food, Chinese food, sound, Chinese sound, young, Chinese young
_ANIMALS = """
cat|猫|只|4|fish|鱼|meow|喵|kitten|小猫
dog|狗|只|4|meat|肉|woof|汪|puppy|小狗
cow|牛|头|4|grass|草|moo|哞|calf|小牛
sheep|羊|只|4|grass|草|baa|咩|lamb|小羊
pig|猪|头|4|corn|玉米|oink|哼|piglet|小猪
horse|马|匹|4|hay|干草|neigh|嘶|foal|小马
duck|鸭子|只|2|bread|面包|quack|嘎|duckling|小鸭
frog|青蛙|只|4|flies|苍蝇|ribbit|呱|tadpole|蝌蚪
lion|狮子|头|4|meat|肉|roar|吼|cub|小狮子
bee|蜜蜂|只|6|honey|蜂蜜|buzz|嗡||
mouse|老鼠|只|4|cheese|奶酪|squeak|吱||
owl|猫头鹰|只|2|mice|老鼠|hoot|咕||
rabbit|兔子|只|4|carrots|胡萝卜||||
panda|熊猫|只|4|bamboo|竹子||||
monkey|猴子|只|4|bananas|香蕉||||
elephant|大象|头|4|leaves|树叶||||
tiger|老虎|只|4|meat|肉||||
bear|熊|只|4|honey|蜂蜜||||
fox|狐狸|只|4|berries|浆果||||
bird|鸟|只|2|seeds|种子||||
penguin|企鹅|只|2|fish|鱼||||
spider|蜘蛛|只|8|flies|苍蝇||||
ant|蚂蚁|只|6|sugar|糖||||
giraffe|长颈鹿|只|4|leaves|树叶||||
turtle|乌龟|只|4|lettuce|生菜||||
squirrel|松鼠|只|4|nuts|坚果||||
deer|鹿|头|4|grass|草||||
wolf|狼|头|4|meat|肉||||
koala|考拉|只|4|leaves|树叶||||
whale|鲸鱼|头|0|fish|鱼||||
snake|蛇|条|0|mice|老鼠||||
butterfly|蝴蝶|只|6|flowers|花||||
"""
ANIMALS = []
for _line in _ANIMALS.strip().splitlines():
    _f = _line.split("|")
    ANIMALS.append({"en": _f[0], "zh": _f[1], "unit": _f[2], "legs": int(_f[3]),
                    "food": {"en": _f[4], "zh": _f[5]}, "sound": {"en": _f[6], "zh": _f[7]},
                    "young": {"en": _f[8], "zh": _f[9]}})
FLIERS = {"duck", "bee", "owl", "bird", "butterfly"}
SWIMMERS = {"duck", "frog", "penguin", "turtle", "whale", "dog", "bear", "tiger", "elephant"}
PLURALS = {"mouse": "mice", "sheep": "sheep", "deer": "deer", "wolf": "wolves", "fox": "foxes", "butterfly": "butterflies"}

OPPOSITES = [("big", "大", "small", "小"), ("hot", "热", "cold", "冷"), ("fast", "快", "slow", "慢"),
             ("happy", "高兴", "sad", "难过"), ("new", "新", "old", "旧"), ("long", "长", "short", "短"),
             ("high", "高", "low", "低"), ("day", "白天", "night", "夜晚"), ("open", "开", "closed", "关"),
             ("light", "轻", "heavy", "重"), ("full", "满", "empty", "空"), ("strong", "强", "weak", "弱"),
             ("good", "好", "bad", "坏"), ("early", "早", "late", "晚"), ("clean", "干净", "dirty", "脏"),
             ("left", "左", "right", "右"), ("up", "上", "down", "下"), ("wet", "湿", "dry", "干")]

# people with a Chinese form; used in translation, stories, JSON and memory
NAMES = [("Anna", "安娜"), ("Tom", "汤姆"), ("Bob", "鲍勃"), ("Lucy", "露西"), ("Mary", "玛丽"), ("John", "约翰"),
         ("Peter", "彼得"), ("Emma", "艾玛"), ("Jack", "杰克"), ("Lily", "莉莉"), ("David", "大卫"), ("Alice", "爱丽丝"),
         ("Mike", "迈克"), ("Sara", "萨拉"), ("Leo", "里奥"), ("Nina", "妮娜"), ("Paul", "保罗"), ("Eva", "伊娃"),
         ("Max", "马克斯"), ("Linda", "琳达"), ("Ben", "本"), ("Rosa", "罗莎"), ("Oscar", "奥斯卡"), ("Mia", "米娅")]
MORE_NAMES = """Adam Alex Amy Andrew Angela Arthur Bella Bill Brian Carl Carlos Carol Charlie Chris Clara Daniel Diana
Dora Edward Ella Eric Ethan Fiona Frank Fred George Grace Greg Hannah Harry Helen Henry Hugo Ian Ida Iris Isaac Jacob
James Jane Jason Jenny Jim Joe Julia Kate Kevin Kim Laura Liam Luis Luke Marco Maria Mark Martin Maya Michael Mona Nancy
Nick Noah Nora Olga Oliver Olivia Omar Pablo Pam Patrick Pia Quinn Ray Rita Robert Robin Roger Ron Ruby Ryan Sam Samuel
Sandra Sean Simon Sofia Sophie Stella Steve Susan Tara Ted Theo Tim Tina Tony Uma Vera Victor Vincent Wendy Will Yara
Yuki Zack Zoe""".split()
SURNAMES = "王李张刘陈杨赵黄周吴徐孙马朱胡林郭何高罗"
GIVEN = "伟芳娜敏静强磊洋艳勇军杰娟涛明超霞平刚英华玉兰红梅云飞雪婷宇浩晨思雨佳欣子轩一诺梓涵"

FOODS = [("apples", "苹果"), ("bananas", "香蕉"), ("rice", "米饭"), ("noodles", "面条"), ("bread", "面包"),
         ("cheese", "奶酪"), ("pizza", "披萨"), ("soup", "汤"), ("cake", "蛋糕"), ("fish", "鱼"), ("grapes", "葡萄"),
         ("oranges", "橙子"), ("dumplings", "饺子"), ("chocolate", "巧克力"), ("eggs", "鸡蛋"), ("ice cream", "冰淇淋"),
         ("strawberries", "草莓"), ("tofu", "豆腐")]
DRINKS = [("tea", "茶"), ("coffee", "咖啡"), ("milk", "牛奶"), ("water", "水"), ("juice", "果汁")]
SPORTS = [("football", "足球"), ("basketball", "篮球"), ("tennis", "网球"), ("chess", "国际象棋"), ("swimming", "游泳"),
          ("running", "跑步"), ("dancing", "跳舞"), ("skiing", "滑雪")]
JOBS = [("teacher", "老师"), ("doctor", "医生"), ("student", "学生"), ("cook", "厨师"), ("farmer", "农民"),
        ("painter", "画家"), ("driver", "司机"), ("nurse", "护士"), ("writer", "作家"), ("engineer", "工程师")]

# noun, plural, Chinese, classifier
OBJECTS = [("apple", "apples", "苹果", "个"), ("book", "books", "书", "本"), ("ball", "balls", "球", "个"),
           ("flower", "flowers", "花", "朵"), ("cup", "cups", "杯子", "个"), ("hat", "hats", "帽子", "顶"),
           ("car", "cars", "汽车", "辆"), ("pen", "pens", "笔", "支"), ("chair", "chairs", "椅子", "把"),
           ("table", "tables", "桌子", "张"), ("tree", "trees", "树", "棵"), ("house", "houses", "房子", "座"),
           ("fish", "fish", "鱼", "条"), ("bag", "bags", "包", "个"), ("egg", "eggs", "鸡蛋", "个"), ("key", "keys", "钥匙", "把")]
PLACES = [("the garden", "花园里"), ("the house", "房子里"), ("the park", "公园里"), ("the school", "学校里"),
          ("the kitchen", "厨房里"), ("the forest", "森林里"), ("the river", "河里"), ("the box", "盒子里"),
          ("the city", "城市里"), ("the room", "房间里")]
GOALS = [("the park", "公园"), ("school", "学校"), ("the shop", "商店"), ("the library", "图书馆"), ("the station", "车站"),
         ("the hospital", "医院"), ("the zoo", "动物园"), ("the museum", "博物馆"), ("Beijing", "北京"), ("Paris", "巴黎"),
         ("London", "伦敦"), ("Tokyo", "东京")]
FEELINGS = [("big", "大"), ("small", "小"), ("cute", "可爱"), ("fast", "快"), ("slow", "慢"), ("happy", "高兴"),
            ("tired", "累"), ("hungry", "饿"), ("thirsty", "渴"), ("beautiful", "漂亮"), ("clever", "聪明"), ("strong", "强壮"),
            ("old", "老"), ("quiet", "安静")]
ACTIONS = [("sleeping", "睡觉"), ("eating", "吃饭"), ("running", "跑步"), ("singing", "唱歌"), ("dancing", "跳舞"),
           ("swimming", "游泳"), ("playing", "玩"), ("drinking water", "喝水"), ("reading a book", "看书"),
           ("watching TV", "看电视"), ("waiting", "等"), ("crying", "哭"), ("laughing", "笑"), ("working", "工作")]
PRONOUNS = [("I", "我", 0), ("You", "你", 0), ("He", "他", 1), ("She", "她", 1), ("We", "我们", 0), ("They", "他们", 0)]
# verb, third person, Chinese
VERBS = [("like", "likes", "喜欢"), ("want", "wants", "想要"), ("have", "has", "有"), ("see", "sees", "看见"),
         ("buy", "buys", "买"), ("need", "needs", "需要"), ("love", "loves", "爱")]
FAMILY = [("mother", "妈妈"), ("father", "爸爸"), ("brother", "哥哥"), ("sister", "姐姐"), ("friend", "朋友"), ("teacher", "老师")]

# short phrases that translate as a whole (without the final mark)
PHRASES = [("Hello", "你好"), ("Hello world", "你好世界"), ("Hello, world", "你好，世界"), ("Good morning", "早上好"),
           ("Good afternoon", "下午好"), ("Good evening", "晚上好"), ("Good night", "晚安"), ("Thank you", "谢谢"),
           ("Thank you very much", "非常感谢"), ("Goodbye", "再见"), ("See you tomorrow", "明天见"), ("I love you", "我爱你"),
           ("Happy birthday", "生日快乐"), ("Happy New Year", "新年快乐"), ("Nice to meet you", "很高兴认识你"),
           ("Welcome", "欢迎"), ("Sorry", "对不起"), ("No problem", "没问题"), ("Good luck", "祝你好运"), ("Please sit down", "请坐"),
           ("I am fine", "我很好"), ("I do not know", "我不知道"), ("Yes", "是的"), ("No", "不"), ("I am learning Chinese", "我在学中文"),
           ("I am learning English", "我在学英语"), ("Have a nice day", "祝你今天愉快"), ("You are welcome", "不客气")]
QUESTIONS = [("How are you?", "你好吗？"), ("What is your name?", "你叫什么名字？"), ("Where are you?", "你在哪里？"),
             ("What time is it?", "现在几点？"), ("How much is it?", "这个多少钱？"), ("Who are you?", "你是谁？"),
             ("How old are you?", "你几岁了？"), ("What is this?", "这是什么？")]
WEATHER = [("sunny", "晴天"), ("rainy", "雨天"), ("cloudy", "阴天"), ("windy", "刮风天"), ("snowy", "下雪天")]

# things far outside the world, only used in questions the model should decline
TOPICS = """quantum physics|black holes|the stock market|the Roman Empire|World War Two|photosynthesis|climate change|Bitcoin
|the French Revolution|Shakespeare|Hamlet|Mozart|Beethoven|Albert Einstein|Isaac Newton|Napoleon|Julius Caesar|Cleopatra
|the Mona Lisa|the Eiffel Tower|the Great Wall|Mount Everest|the Amazon|the Pacific Ocean|the Moon landing|Mars|Jupiter|Saturn
|gravity|electricity|magnetism|DNA|proteins|vaccines|cancer|diabetes|the human brain|the heart|evolution|dinosaurs|volcanoes
|earthquakes|hurricanes|tides|rainbows|lightning|nuclear power|solar panels|batteries|engines|airplanes|rockets|submarines
|computers|the internet|Linux|Windows|Rust|JavaScript|compilers|databases|operating systems|neural networks|transformers
|deep learning|blockchain|cryptography|calculus|algebra|geometry|topology|prime numbers|the square root of two|pi|probability
|economics|inflation|taxes|mortgages|insurance|marketing|democracy|communism|capitalism|philosophy|Plato|Aristotle|Kant
|Nietzsche|Buddhism|Christianity|Islam|Hinduism|yoga|meditation|psychology|Freud|dreams|love letters|poetry|haiku|novels
|Harry Potter|Star Wars|the Beatles|jazz|rock music|opera|ballet|the Olympics|the World Cup|baseball|golf|cricket|poker
|cooking pasta|baking bread|making wine|brewing beer|gardening|fishing|knitting|photography|painting walls|fixing a bike
|the weather tomorrow|the news|the president|the prime minister|the king|the pope|my bank account|my email|my homework
|a good restaurant|a cheap hotel|flights to Rome|train tickets|visas|passports|the law|contracts|patents|the police|crime
|chemistry|atoms|molecules|helium|uranium|gold mining|oil prices|steel|concrete|bridges|skyscrapers|architecture|Gothic churches
|Latin|Esperanto|grammar|the alphabet|hieroglyphs|the Bible|the Odyssey|Don Quixote|Tolstoy|Dickens|Picasso|Van Gogh
|robots|artificial intelligence|ChatGPT|smartphones|television|radio|cinema|video games|Minecraft|board games|magic tricks
|the speed of light|the age of the universe|relativity|string theory|entropy|thermodynamics|lasers|microscopes|telescopes
|the immune system|antibiotics|vitamins|calories|diets|sleep|headaches|allergies|surgery|first aid|pregnancy|parenting
|marriage|friendship|happiness|the meaning of life|free will|consciousness|time travel|aliens|ghosts|unicorns|dragons|Atlantis
|an essay|my thesis|a business plan|a recipe for lasagna|a cover letter|the plot of Titanic|the rules of chess boxing"""
TOPICS = [t.strip() for t in TOPICS.replace("\n", "").split("|")]
TOPICS_ZH = """量子力学|黑洞|股票|罗马帝国|第二次世界大战|光合作用|气候变化|比特币|法国大革命|莎士比亚|莫扎特|贝多芬|爱因斯坦|牛顿
|拿破仑|埃菲尔铁塔|长城的历史|珠穆朗玛峰|亚马逊河|太平洋|登月|火星|木星|重力|电|基因|蛋白质|疫苗|癌症|糖尿病|大脑|心脏病|进化论|恐龙
|火山|地震|台风|彩虹|闪电|核能|太阳能|电池|发动机|飞机|火箭|潜艇|计算机|互联网|操作系统|编译器|数据库|神经网络|深度学习|区块链|密码学
|微积分|代数|几何|质数|圆周率|概率|经济学|通货膨胀|税收|房贷|保险|市场营销|民主|哲学|柏拉图|佛教|瑜伽|冥想|心理学|做梦|情书|诗歌
|小说|哈利波特|星球大战|爵士乐|摇滚乐|歌剧|芭蕾舞|奥运会|世界杯|棒球|高尔夫|扑克|红烧肉的做法|酿酒|园艺|钓鱼|摄影|修自行车
|明天的天气|新闻|总统|国王|我的银行账户|我的邮件|我的作业|好吃的餐厅|便宜的酒店|机票|火车票|签证|护照|法律|合同|专利|警察
|化学|原子|分子|石油价格|钢铁|桥梁|建筑|拉丁语|语法|红楼梦|西游记|毕加索|梵高|机器人|人工智能|手机|电影|电子游戏|魔术
|光速|宇宙的年龄|相对论|熵|激光|望远镜|免疫系统|抗生素|维生素|减肥|失眠|头痛|过敏|手术|急救|婚姻|幸福|人生的意义|自由意志|意识
|时间旅行|外星人|鬼|独角兽|龙|一篇作文|我的论文|商业计划|唐朝|清朝|京剧|书法|围棋的规则|高考|春联"""
TOPICS_ZH = [t.strip() for t in TOPICS_ZH.replace("\n", "").split("|")]
