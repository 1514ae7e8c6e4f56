package epoch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// executor carries out actions and posts their results as events. Its methods return at once.
//
// Short actions run one after the other in one goroutine for each thing that may hang: the keeper,
// the files, and the parts that are notified. So the order of notes, signals and starts is that of
// the decisions. What takes longer is a job, a goroutine of its own.
type executor struct {
	options Options
	log     *slog.Logger
	pings   chan struct{}
	ended   chan struct{} // closed when Run returns
	inbox   *mailbox[event]
	ledger  worker // requests to the keeper
	files   worker
	notices worker          // board, log and callers
	life    context.Context // of the jobs that events start; Run, which is called once, sets it
	jobs    sync.WaitGroup

	mu      sync.Mutex
	keeper  Keeper
	running map[string]*job
	callers map[int]*caller
	callID  int
}

// caller is how a call is reached.
type caller struct {
	answer chan answer // holds one
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

// begin starts the goroutines. The function it returns ends them: it gives actions that are queued
// requestTimeout to be carried out.
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
			short.Wait() // requests to the keeper start jobs
			x.jobs.Wait()
			x.notices.close() // answers come last
			notifying.Wait()
		}()
		select {
		case <-finished:
		case <-time.After(requestTimeout):
		}
	}
}

// post adds an event. It does not block.
func (x *executor) post(t trigger) { x.inbox.add(event{trigger: t}) }

// call posts the event of a call that is answered.
func (x *executor) call(onWait func(time.Time, string), trigger func(call) trigger) *caller {
	c := &caller{answer: make(chan answer, 1), onWait: onWait}
	x.mu.Lock()
	defer x.mu.Unlock() // the order of the calls is that of their events
	x.callID++
	x.callers[x.callID] = c
	x.post(trigger(call{id: x.callID}))
	return c
}

// await waits for the answer to a call.
func (x *executor) await(ctx context.Context, c *caller) answer {
	select {
	case a := <-c.answer:
		return a
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	case <-x.ended:
	}
	select {
	case a := <-c.answer: // the answer came before the end of Run
		return a
	default:
		return answer{err: ErrEnded}
	}
}

// caller returns how to reach a call; nil if it was answered.
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

// withKeeper makes a request to the keeper of now, within requestTimeout.
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

// requestKeeper queues a request to the keeper whose only result is a line in the log if it fails.
func (x *executor) requestKeeper(failure string, args []any,
	request func(context.Context, Keeper) error) {
	x.ledger.add(func(ctx context.Context) {
		if err := x.withKeeper(ctx, request); err != nil {
			x.logs(slog.LevelWarn, failure, append(args, "error", err)...)
		}
	})
}

// logs queues a line of the log.
func (x *executor) logs(level slog.Level, message string, args ...any) {
	x.notices.add(func(ctx context.Context) { x.log.Log(ctx, level, message, args...) })
}

// job is a goroutine that can be cancelled.
type job struct{ cancel context.CancelFunc }

// job runs a goroutine that cancelJob ends, and a later job of that name.
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

// The names of jobs.
const (
	stopJob  = "stop"
	awaitJob = "await processes"
)

func startJob(id string) string { return "start " + id }
func drainJob(id string) string { return "drain " + id }

// sleep reports false if ctx ended first.
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
