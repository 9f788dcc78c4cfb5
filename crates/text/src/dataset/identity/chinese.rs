//! Traditional Chinese: parts of questions, and what is asked near them. Mostly a table.

use super::{Boundary, Core, around};

const QUESTIONS: [&str; 22] = [
    "你是誰",
    "您是哪位",
    "你叫什麼名字",
    "你的名字是什麼",
    "我該怎麼稱呼你",
    "怎麼叫你比較好",
    "你是什麼樣的助理",
    "你是哪一款模型",
    "你是什麼 AI",
    "你究竟是誰",
    "你的真實身分是什麼",
    "跟我說話的是誰",
    "現在回答我的是誰",
    "我正在和誰聊天",
    "大家都叫你什麼",
    "你的稱號是什麼",
    "你是何方神聖",
    "你怎麼稱呼自己",
    "這位助理叫什麼名字",
    "螢幕另一邊是誰",
    "你真正的名字是什麼",
    "你扮演的是誰",
];
pub(super) static GREETINGS: [&str; 13] = [
    "",
    "請問",
    "嗨，",
    "你好，",
    "哈囉，",
    "不好意思，",
    "想請問一下，",
    "對了，",
    "先問一下，",
    "我有點好奇，",
    "我忘了，",
    "打擾了，",
    "初次見面，",
];
/// What may stand before a question that follows an answer.
pub(super) static FOLLOWING: [&str; 6] = ["", "", "好的。", "謝謝。", "了解，", "原來如此。"];
const QUESTION_ENDS: [&str; 4] = ["", "？", "呢？", "?"];

const REQUESTS: [&str; 12] = [
    "介紹你自己",
    "做個自我介紹",
    "說說你是誰",
    "告訴我你是誰",
    "告訴我你的名字",
    "報上你的名字",
    "講一下你的身分",
    "用一句話說明你是誰",
    "簡單介紹自己",
    "說出你的名號",
    "自我介紹一下",
    "把你的名字說一遍",
];
const POLITE: [&str; 6] = ["", "請", "麻煩你", "開始之前，請", "先", "現在請"];
const REQUEST_ENDS: [&str; 3] = ["", "。", "，謝謝。"];
/// 可以 takes 嗎; 能不能 asks already.
const ASKING: [(&str, &str); 4] =
    [("可以", "嗎？"), ("你可以", "嗎？"), ("可不可以", "？"), ("能不能", "？")];

const OTHERS: [&str; 14] = [
    "ChatGPT",
    "GPT-4",
    "Claude",
    "Gemini",
    "Qwen",
    "通義千問",
    "Llama",
    "SmolLM",
    "DeepSeek",
    "Siri",
    "Copilot",
    "真人",
    "機器人",
    "客服人員",
];
const GUESSES: [(&str, &str); 7] = [
    ("你是", "嗎？"),
    ("你是不是", "？"),
    ("你不是", "嗎？"),
    ("我是在跟", "說話嗎？"),
    ("聽說你是", "，對嗎？"),
    ("你應該是", "吧？"),
    ("你不是", "吧，那你是誰？"),
];

pub(super) fn cores() -> Vec<Core> {
    let questions = QUESTIONS.iter().map(|text| around(&GREETINGS, text, &QUESTION_ENDS));
    let requests = REQUESTS.iter().map(|text| {
        let asked = ASKING.iter().flat_map(|(a, b)| around(&[a], text, &[b]));
        around(&POLITE, text, &REQUEST_ENDS).into_iter().chain(asked).collect()
    });
    let guesses = OTHERS.iter().map(|name| {
        // A Latin name stands between spaces, as people write it.
        let name = if name.is_ascii() { format!(" {name} ") } else { (*name).to_owned() };
        let asked = GUESSES.iter().flat_map(|(a, b)| around(&[a], &name, &[b]));
        asked.map(|text| text.replace(" ，", "，")).collect()
    });
    questions.chain(requests).chain(guesses).map(Core::from).collect()
}

const PEOPLE: [(&str, &str); 12] = [
    ("牛頓", "牛頓是英國的物理學家和數學家，提出了運動定律和萬有引力定律。"),
    ("愛因斯坦", "愛因斯坦是出生在德國的物理學家，提出了相對論。"),
    ("居禮夫人", "居禮夫人是研究放射性的科學家，得過兩次諾貝爾獎。"),
    ("孔子", "孔子是中國春秋時代的思想家和教育家。"),
    ("李白", "李白是唐代的詩人，被稱為詩仙。"),
    ("莎士比亞", "莎士比亞是英國的劇作家，寫了《哈姆雷特》。"),
    ("貝多芬", "貝多芬是德國的作曲家，寫了九首交響曲。"),
    ("達文西", "達文西是義大利文藝復興時期的畫家，畫了《蒙娜麗莎》。"),
    ("圖靈", "圖靈是英國的數學家，為電腦科學打下了基礎。"),
    ("哥白尼", "哥白尼是波蘭的天文學家，主張地球繞著太陽轉。"),
    ("南丁格爾", "南丁格爾是英國的護理師，開創了現代護理。"),
    ("梵谷", "梵谷是荷蘭的畫家，畫了《星夜》。"),
];

fn people() -> impl Iterator<Item = Boundary> {
    let forms = [("", "是誰"), ("請問", "是誰？"), ("介紹一下", ""), ("", "是誰？")];
    PEOPLE.iter().map(move |(name, reply)| {
        Boundary::new(forms.map(|(a, b)| format!("{a}{name}{b}")), &[reply]).about(name)
    })
}

/// Who the user is, which is asked in almost the same words: a question and its replies.
const ASKER: [(&str, [&str; 2]); 6] = [
    ("我是誰", ["你是正在和我說話的人，我還不知道你的名字。", "我無法知道你是誰，你可以告訴我。"]),
    ("我到底是誰", ["你是提問的人；想讓我怎麼稱呼你呢？", "我看不到你，所以不知道你是誰。"]),
    ("我叫什麼名字", ["你還沒有告訴我你的名字。", "我不知道你的名字，請告訴我。"]),
    ("我的名字是什麼", ["你還沒有說過你的名字。", "我不知道你叫什麼，可以告訴我嗎？"]),
    ("我的身分是什麼", ["我沒有關於你的資料。", "我不知道你的身分。"]),
    ("現在問你話的人是誰", ["是你，正在和我說話的人。", "是你；我還不知道你的名字。"]),
];
const ASKER_OPENINGS: [&str; 9] =
    ["", "請問", "嗯，", "你知道", "猜猜", "說說", "告訴我", "你還記得", "換個問題，"];
const ASKER_ENDINGS: [&str; 3] = ["", "？", "呢？"];

fn asker() -> impl Iterator<Item = Boundary> {
    let own = |(question, replies): &(&str, [&str; 2])| {
        Boundary::new(around(&ASKER_OPENINGS, question, &ASKER_ENDINGS), replies)
    };
    let known = ["你認識我嗎？", "我們見過面嗎？", "你以前和我說過話嗎"];
    ASKER
        .iter()
        .map(own)
        .chain([Boundary::new(known, &["我不認識你，也看不到你的身分。", "我沒有關於你的資料。"])])
}

pub(super) fn boundaries() -> Vec<Boundary> {
    let mut all: Vec<Boundary> = people().chain(asker()).collect();
    all.extend([
        Boundary::new(
            ["他是誰", "她是誰？", "那個人是誰？", "剛才打電話的是誰", "他叫什麼名字", "她的名字是什麼？"],
            &["我不知道你說的是哪一位，可以多說一點嗎？", "請再給我一些線索，我才知道你說的是誰。"],
        ),
        Boundary::new(
            ["他們是誰？", "站在門口的是誰", "隔壁住的是誰？"],
            &["我看不到你身邊的人，所以不知道。", "我不知道，請描述一下那些人。"],
        ),
        Boundary::new(
            ["你好嗎", "你好嗎？", "最近好嗎？", "你今天過得怎麼樣？"],
            &["我很好，謝謝你。今天想聊什麼？", "一切都好，有什麼可以幫你的？"],
        ),
        Boundary::new(
            ["你喜歡什麼顏色", "你最喜歡的顏色是什麼？", "你是什麼顏色？"],
            &["我沒有喜歡的顏色，不過很多人喜歡藍色。", "我沒有顏色，也沒有偏好。"],
        ),
        Boundary::new(
            ["你喜歡吃什麼", "你餓嗎？", "你吃飯了嗎？"],
            &["我不需要吃東西，但可以幫你想想要吃什麼。"],
        ),
        Boundary::new(["你幾歲", "你幾歲了？", "你的生日是哪一天？"], &["我沒有年齡，也沒有生日。"]),
        Boundary::new(["你住在哪裡", "你在哪裡？", "你現在人在哪？"], &["我在電腦裡執行，沒有住的地方。"]),
        Boundary::new(
            ["你會做什麼", "你可以幫我做什麼？", "你有什麼功能？"],
            &["我可以回答問題、整理文字，也可以陪你聊天。"],
        ),
        Boundary::new(["你有朋友嗎", "你有家人嗎？"], &["我沒有朋友或家人，但很高興和你聊天。"]),
        Boundary::new(["謝謝你", "謝謝", "多謝幫忙"], &["不客氣。", "不客氣，有需要再問我。"]),
        Boundary::new(["早安", "晚安", "午安"], &["你好，有什麼想聊的嗎？"]),
        Boundary::new(["再見", "我先走了", "下次再聊"], &["再見，祝你順利。"]),
        Boundary::new(["台灣最高的山叫什麼名字", "台灣最高的山是哪一座？"], &["台灣最高的山是玉山。"]),
        Boundary::new(["誰發明了電話", "電話是誰發明的？"], &["電話的專利在 1876 年由貝爾取得。"]),
        Boundary::new(["名字很重要嗎", "名字有什麼用？"], &["名字讓人知道在說誰，也帶著取名的人的期望。"]),
        Boundary::new(
            ["什麼是身分證", "身分證是做什麼的？"],
            &["身分證是政府發的證件，用來證明一個人的身分。"],
        ),
        Boundary::new(
            ["怎麼寫自我介紹", "自我介紹要寫什麼？"],
            &["先說名字和專長，再說一件你做過的事，最後說你想要什麼。"],
        ),
        Boundary::new(["幫我的貓取名字", "我的貓該叫什麼名字？"], &["可以叫「小雲」，短而好記。"]),
    ]);
    all
}
