package explain

// truth is the result of a condition: never, maybe or always. It is maybe if it depends on a fact
// that the request does not state.
type truth int8

const (
	never truth = iota
	maybe
	always
)

func (t truth) not() truth { return always - t }

func truthOf(holds bool) truth {
	if holds {
		return always
	}
	return never
}

// every reports whether all elements satisfy a condition. It stops at the first one that does not.
func every[T any](of []T, holds func(T) truth) truth {
	result := always
	for _, one := range of {
		if result = min(result, holds(one)); result == never {
			break
		}
	}
	return result
}

// some reports whether one of the elements satisfies a condition. It stops at the first one that
// does.
func some[T any](of []T, holds func(T) truth) truth {
	result := never
	for _, one := range of {
		if result = max(result, holds(one)); result == always {
			break
		}
	}
	return result
}
