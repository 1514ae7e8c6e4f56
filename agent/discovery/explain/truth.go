package explain

// truth is whether a condition holds. It is maybe if the request leaves open what decides.
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

// every returns whether all elements hold. It stops at the first that does not.
func every[T any](of []T, holds func(T) truth) truth {
	result := always
	for _, one := range of {
		if result = min(result, holds(one)); result == never {
			break
		}
	}
	return result
}

// some returns whether one of the elements holds. It stops at the first that does.
func some[T any](of []T, holds func(T) truth) truth {
	result := never
	for _, one := range of {
		if result = max(result, holds(one)); result == always {
			break
		}
	}
	return result
}
