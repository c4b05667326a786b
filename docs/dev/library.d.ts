// The types of the library, written by test/e2e/library.test.ts.

export type Message = {
    readonly role: 'system' | 'user';
    readonly content: string;
export interface Tool {
    readonly name: string;
    /** '' for none. */
    readonly description: string;
    /** Schema of the object of its arguments. */
    readonly parameters: JsonSchema;
}
export interface ToolCall {
    readonly id: string;
    readonly name: string;
    /** JSON, as the model wrote it. */
    readonly arguments: string;
}
export type ToolChoice = 'auto' | 'none' | 'required' | {
    readonly name: string;
export type ReplyPiece = {
    readonly type: 'reasoning' | 'text';
    readonly text: string;
export interface SessionInfo {
    readonly id: string;
    /** Grows with every change. */
    readonly version: number;
    /** The turn that the next request continues; 0 when there is none. */
    readonly head: number;
    /** Oldest first. Old turns are pruned; see docs/states.md. */
    readonly turns: readonly TurnInfo[];
    readonly createdAt: number;
    readonly updatedAt: number;
    readonly expiresAt: number | null;
    /** Bytes of all its states. */
    readonly bytes: number;
    /** A request is writing to it. */
    readonly isBusy: boolean;
    /** The note of the head turn; only when the session was asked for by id. */
    readonly note?: string | undefined;
}
export interface TurnInfo {
    readonly turn: number;
    /** The turn that it continued; 0 for the first. */
    readonly parent: number;
    /** Tokens of the conversation up to and with this turn. */
    readonly numTokens: number;
    /** Milliseconds since 1970. */
    readonly createdAt: number;
    readonly tier: StateTier;
    /** Whether it survives the end of the process. */
    readonly isSaved: boolean;
}
export type JsonSchema = boolean | {
    readonly [keyword: string]: unknown;
export interface EngineChoice extends RunnerChoice, StateChoice {
    /** Absent: a single server, which keeps its sessions in `dataDir`. */
    readonly cluster?: ClusterChoice | undefined;
    readonly vocab?: string | undefined;
    readonly maxWaiting?: number | undefined;
    /** Target time of a step that reads prompts while answers run, in milliseconds. */
    readonly itlTargetMs?: number | undefined;
    /** Prompt tokens of such a step. */
    readonly prefillChunk?: number | undefined;
    readonly maxPromptTokens?: number | undefined;
    readonly startStates?: readonly StartStateFile[] | undefined;
    /** Absent: none, unless the model was made for embeddings. */
    readonly embeddings?: EmbeddingsChoice | undefined;
    /** An EmbeddingRWKV file that scores states of this model. */
    readonly reranker?: string | undefined;
    /** Absent: g1. */
    readonly toolTemplate?: ToolTemplate | undefined;
}
/** As the libraries are given them. The default is no effect, except for `topP`, which is 0.5. */
export type SamplingOptions = Readonly<Partial<Record<SamplingName, number | undefined>>>;
export interface TextOptions extends SamplingOptions {
    /** Same seed and prompt, same text, whatever else runs. */
    readonly seed?: number | bigint | undefined;
    /** Default 512. */
    readonly maxTokens?: number | undefined;
    /** Texts that end the answer and are not part of it. */
    readonly stop?: string | readonly string[] | undefined;
    readonly signal?: AbortSignal | undefined;
}
/** How a text is continued. */
export interface GenerateOptions extends TextOptions {
    /** A name of `EngineChoice.startStates`. */
    readonly startState?: string | undefined;
    /** Called with the number of tokens of each piece. */
    readonly onTokens?: ((count: number) => void) | undefined;
}
/** Options of a chat besides those of `GenerateOptions`; `startState` is for raw prompts. */
export interface ChatOptions extends Omit<GenerateOptions, 'startState' | 'onTokens'> {
    /** Tools that the model may call. Excludes `schema`. */
    readonly tools?: readonly Tool[] | undefined;
    /** Default `auto`. */
    readonly toolChoice?: ToolChoice | undefined;
    /** Constrains the answer to JSON of this schema, token by token. */
    readonly schema?: JsonSchema | undefined;
    /** Let the model think first (G1 models), which yields pieces of type `reasoning`. Default false. */
    readonly think?: boolean | undefined;
    /** Name of the conversation: its state is kept, and `messages` holds only new messages. The first use creates it. */
    readonly session?: string | undefined;
    /** With a session: the turn to continue from; absent: the last. Turn 0 is the start. */
    readonly from?: number | undefined;
    /** With a session: throws `conflict` unless the session has this version, as reported by the previous reply. */
    readonly ifVersion?: number | undefined;
}
export interface ChatReply {
    readonly text: string;
    /** Empty if the model did not think. */
    readonly reasoning: string;
    readonly calls: readonly ToolCall[];
    /** `calls`: the model calls tools; `length`: `maxTokens` was reached. */
    readonly reason: FinishReason | 'calls';
    readonly promptTokens: number;
    /** Prompt tokens that were not read, thanks to a kept state. */
    readonly cachedTokens: number;
    readonly completionTokens: number;
    /** The session's turn with this answer; null without a session. */
    readonly turn: number | null;
    /** The session's version after it. */
    readonly version: number | null;
    /** The turn that it continued, 0 for the start: after a crash the session may continue from an older one. */
    readonly continued: number | null;
}
/** Conversations by name. All methods except `list` throw `not_found` for an unknown one. */
export interface Sessions {
    /** Most recently used first. */
    list(): Promise<readonly SessionInfo[]>;
    get(id: string): Promise<SessionInfo>;
    /** Copies session `id` up to a turn (default: the last) as `newId`. Throws `conflict` if that exists. */
    fork(id: string, newId: string, turn?: number): Promise<SessionInfo>;
    /** Makes a turn the last one; later turns stay. */
    rewind(id: string, turn: number): Promise<SessionInfo>;
    /** The state of a turn as a file for `import`, here or on a server with the same model. */
    export(id: string, turn?: number): Promise<Uint8Array>;
    import(id: string, bytes: Uint8Array): Promise<SessionInfo>;
    delete(id: string): Promise<void>;
}
export interface Llm {
    readonly info: EngineInfo;
    readonly tokenizer: Tokenizer;
    /** The engine itself, for callers that need tokens, log-probabilities or several answers. */
    readonly client: EngineClient;
    readonly sessions: Sessions;
    /** Continues a text; yields pieces of whole characters as they come. Leaving the loop, or `signal`, cancels it. */
    generate(prompt: string, options?: GenerateOptions): AsyncIterable<string>;
    /** Answers a conversation, or one question, piece by piece. */
    chat(messages: string | readonly Message[], options?: ChatOptions): AsyncIterable<ReplyPiece>;
    /** The same, as a whole. */
    answer(messages: string | readonly Message[], options?: ChatOptions): Promise<ChatReply>;
    /** One vector of length 1 per text, for a model loaded with `embeddings: 'mean'` or `'last'`; throws for others. */
    embed(texts: readonly string[], signal?: AbortSignal): Promise<readonly Float32Array[]>;
    close(): Promise<void>;
}
/**
 * Loads a model into this process: a file, the name of a pulled model, `demo`, or an `EngineChoice` with device,
 * weights, slots and more. Throws a SkeinError that says what to do.
 */
export declare function load(choice: string | EngineChoice, options?: {
    readonly onProgress?: LoadProgress | undefined;
}): Promise<Llm>;
