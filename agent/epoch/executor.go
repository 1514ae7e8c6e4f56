package epoch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// executor carries out actions and posts their results as events. Its methods return at once. Short
// actions are queued; each resource that may hang has a worker goroutine with a queue: the keeper,
// the files, and the receivers of notifications. So the keeper receives notes, signals and starts
// in the order in which they were decided. Longer actions are jobs, each in a goroutine of its own.
type executor struct {
	options Options
	log     *slog.Logger
	pings   chan struct{}
	ended   chan struct{} // closed when Run returns
	inbox   *mailbox[event]
	ledger  worker // queue of requests to the keeper
	files   worker
	notices worker          // queue of conditions, events, log lines and replies to callers
	life    context.Context // parent context of all jobs; set by Run, which may be called only once
	jobs    sync.WaitGroup

	mu      sync.Mutex
	keeper  Keeper
	running map[string]*job
	callers map[int]*caller
	callID  int
}

// caller is a call that waits for its result.
type caller struct {
	answer chan answer // has room for one answer
	onWait func(until time.Time, why string)
}

var errKeeperLost = errors.New("the connection to the keeper is lost")

func newExecutor(options Options) executor {
	options = options.withDefaults()
	return executor{
		options: options, log: options.Logger,
		pings: make(chan struct{}), ended: make(chan struct{}),
		inbox: newMailbox[event](), ledger: newWorker(), files: newWorker(), notices: newWorker(),
		running: map[string]*job{}, callers: map[int]*caller{},
	}
}

// begin starts the worker goroutines. The returned function ends them; queued actions have
// requestTimeout to complete.
func (x *executor) begin(ctx context.Context, keeper Keeper) (end func()) {
	x.setKeeper(keeper)
	life, cancel := context.WithCancel(ctx)
	x.life = life
	acting, abandon := context.WithCancel(context.WithoutCancel(ctx))
	var short, notifying sync.WaitGroup
	short.Go(func() { x.ledger.run(acting) })
	short.Go(func() { x.files.run(acting) })
	notifying.Go(func() { x.notices.run(acting) })
	return func() {
		cancel()
		defer close(x.ended)
		defer abandon()
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			x.ledger.close()
			x.files.close()
			short.Wait() // jobs may be started until the last request to the keeper has ended
			x.jobs.Wait()
			x.notices.close() // last, because jobs send notifications and answers
			notifying.Wait()
		}()
		select {
		case <-finished:
		case <-time.After(requestTimeout):
		}
	}
}

// post queues an event. It does not block.
func (x *executor) post(t trigger) { x.inbox.add(event{trigger: t}) }

// call queues the event of a call that expects a result.
func (x *executor) call(onWait func(time.Time, string), trigger func(call) trigger) *caller {
	c := &caller{answer: make(chan answer, 1), onWait: onWait}
	x.mu.Lock()
	// held until the event is posted, so that events have the order of the calls' numbers
	defer x.mu.Unlock()
	x.callID++
	x.callers[x.callID] = c
	x.post(trigger(call{id: x.callID}))
	return c
}

// await waits for the result of a call.
func (x *executor) await(ctx context.Context, c *caller) answer {
	select {
	case a := <-c.answer:
		return a
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	case <-x.ended:
	}
	select {
	case a := <-c.answer: // the result arrived before the end of Run
		return a
	default:
		return answer{err: errEnded}
	}
}

// caller returns a waiting call by its number; nil if the call has its result already.
func (x *executor) caller(id int) *caller {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.callers[id]
}

func (x *executor) setKeeper(keeper Keeper) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.keeper = keeper
}

// withKeeper sends a request to the current keeper, within requestTimeout.
func (x *executor) withKeeper(ctx context.Context,
	request func(context.Context, Keeper) error) error {
	x.mu.Lock()
	keeper := x.keeper
	x.mu.Unlock()
	if keeper == nil {
		return errKeeperLost
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx, keeper)
}

// requestKeeper queues a request to the keeper. If the request fails, it only logs the message
// failure with the fields args.
func (x *executor) requestKeeper(failure string, args []any,
	request func(context.Context, Keeper) error) {
	x.ledger.add(func(ctx context.Context) {
		if err := x.withKeeper(ctx, request); err != nil {
			x.logs(slog.LevelWarn, failure, append(args, "error", err)...)
		}
	})
}

// logs queues a log line.
func (x *executor) logs(level slog.Level, message string, args ...any) {
	x.notices.add(func(ctx context.Context) { x.log.Log(ctx, level, message, args...) })
}

// job is a goroutine that can be cancelled.
type job struct{ cancel context.CancelFunc }

// job starts a goroutine. cancelJob cancels it, and so does a later job of the same name.
func (x *executor) job(name string, run func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(x.life)
	j := &job{cancel}
	x.mu.Lock()
	if before := x.running[name]; before != nil {
		before.cancel()
	}
	x.running[name] = j
	x.mu.Unlock()
	x.jobs.Go(func() {
		defer cancel()
		run(ctx)
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.running[name] == j {
			delete(x.running, name)
		}
	})
}

// Names of jobs.
const (
	stopJob  = "stop"
	awaitJob = "await processes"
)

func startJob(id string) string { return "start " + id }
func drainJob(id string) string { return "drain " + id }

// sleep sleeps for duration. It returns false if ctx ended first.
func sleep(ctx context.Context, duration time.Duration) bool {
	if duration <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
